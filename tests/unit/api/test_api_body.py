"""Bodies are read within their time, however fast their pieces come."""

from __future__ import annotations

import asyncio

import pytest
from fastapi import Request

from api.requests import body_chunks
from epd.contracts.errors import InvalidRequest


def test_a_body_that_never_ends_and_never_lets_wait_is_given_up_in_time() -> None:
    pieces = 0

    async def receive() -> dict[str, object]:
        nonlocal pieces
        pieces += 1
        assert pieces < 1_000_000, "it is read for ever"
        return {"type": "http.request", "body": b"", "more_body": True}

    async def read() -> None:
        request = Request({"type": "http", "headers": []}, receive)
        async for _ in body_chunks(request, limit=1, seconds=0.05):
            pass

    with pytest.raises(InvalidRequest, match="too slowly"):
        asyncio.run(read())
