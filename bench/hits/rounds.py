"""``python -m bench.hits.rounds``: a share of what a server can do, found out anew before each turn.

A virtual machine's cores are faster and slower by a half from one second to the next, as its neighbours
leave them (docs/performance.md). A share of what was reached a minute ago says little there: it may be more
than all that can be done now.
"""

from __future__ import annotations

import asyncio
import random
import sys
import time
from collections.abc import Iterator, Sequence

import uvloop

from bench.hits.exchange import Exchange
from bench.hits.load import (
    Ready,
    Round,
    RoundsOutcome,
    RoundsPlan,
    Tally,
    ask_closed,
    ask_open,
    connected,
    shuffled,
)

_MOST_SHARE = 1 / 3  #: of a turn's length, for the limit before it


async def _run(plan: RoundsPlan) -> RoundsOutcome:
    turn, chance = shuffled(plan.requests, plan.seed), random.Random(plan.seed)
    rounds: list[Round] = []
    complaints = Tally()
    async with connected(plan.port, plan.connections_at_share) as exchanges:
        few = exchanges[: plan.connections]
        for _ in range(plan.rounds):
            tally, rate = Tally(), plan.share * await _most(few, turn, complaints, plan.seconds * _MOST_SHARE)
            await ask_open(exchanges, turn, tally, plan.seconds, rate, chance)
            rounds.append(Round(rate=rate, latencies=tuple(tally.latencies)))
            complaints.wrong += tally.wrong
            complaints.unsent += tally.unsent
    return RoundsOutcome(rounds=tuple(rounds), wrong=tuple(complaints.wrong), unsent=complaints.unsent)


async def _most(
    exchanges: Sequence[Exchange], turn: Iterator[Ready], complaints: Tally, seconds: float
) -> float:
    """Requests a second."""
    tally, began = Tally(), time.perf_counter()
    await ask_closed(exchanges, turn, tally, seconds)
    complaints.wrong += tally.wrong
    return len(tally.latencies) / (time.perf_counter() - began)


def main() -> None:
    """Run the plan of stdin."""
    plan = RoundsPlan.from_json(sys.stdin.buffer.read())
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        sys.stdout.write(runner.run(_run(plan)).to_json())


if __name__ == "__main__":
    main()
