"""Whether the caller of a waiting request is still there."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress

from fastapi import Request


class Presence:
    """``gone`` is set once the caller's connection has ended; ``on_gone`` is called then."""

    def __init__(self) -> None:
        self.gone = False
        self.on_gone: Callable[[], None] = _nothing

    async def _watch(self, request: Request) -> None:
        """The body was read whole before, so the next message tells of the end."""
        while (await request.receive())["type"] != "http.disconnect":
            pass
        self.gone = True
        self.on_gone()


@asynccontextmanager
async def watched(request: Request) -> AsyncIterator[Presence]:
    """Watch the caller for the length of the block."""
    presence = Presence()
    task = asyncio.create_task(presence._watch(request))
    try:
        yield presence
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


def _nothing() -> None:
    """Nobody wants to know."""
