"""Requests to the API as fast as the answers come, checked one by one."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterator, Mapping, Sequence

import orjson
import uvloop

from bench.hits.exchange import connect, request_bytes

Items = Sequence[Mapping[str, str]]

_WAIT = 240.0


def ask_all(port: int, requests: Sequence[Items], at_once: int) -> float:
    """Seconds from the first request to the last answer; so many requests are under way at once.

    Raises:
        RuntimeError: an answer is not that of new items, all done.
    """
    prepared = [
        (len(items), request_bytes(json.dumps({"items": items, "wait": _WAIT}))) for items in requests
    ]
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(_ask_all(port, prepared, at_once))


async def _ask_all(port: int, prepared: Sequence[tuple[int, bytes]], at_once: int) -> float:
    exchanges = await asyncio.gather(*(connect(port) for _ in range(at_once)))
    turn: Iterator[tuple[int, bytes]] = iter(prepared)
    began = time.perf_counter()

    async def drive(number: int) -> None:
        for count, request in turn:
            check_answer(count, *await exchanges[number].ask(request))

    await asyncio.gather(*map(drive, range(at_once)))
    seconds = time.perf_counter() - began
    for exchange in exchanges:
        exchange.close()
    return seconds


def check_answer(count: int, status: int, body: bytes) -> None:
    """Check that so many items were encoded for this answer.

    Raises:
        RuntimeError: it says something else.
    """
    answer = orjson.loads(body) if status == 200 else {}
    items = answer.get("items", [])
    good = [item for item in items if item["state"] == "done" and not item["cached"]]
    if answer.get("state") != "done" or len(items) != count or len(good) != count:
        raise RuntimeError(f"not {count} new items, all done: status {status}, {body[:1000]!r}")
