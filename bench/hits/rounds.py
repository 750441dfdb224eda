"""``python -m bench.hits.rounds``: load at a share of what the server can do, measured before each turn.

The speed of a virtual machine's cores varies by a half from one second to the next, with the load of its
neighbours (docs/performance.md). There a share of the rate of a minute ago says little: it may be more than
the server can do now.
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

_MOST_SHARE = 1 / 3  #: of a turn's length, for the measurement before it


async def _run(plan: RoundsPlan) -> RoundsOutcome:
    turn, chance = shuffled(plan.requests, plan.seed), random.Random(plan.seed)
    rounds: list[Round] = []
    total = Tally()
    async with connected(plan.port, plan.connections_at_share) as exchanges:
        few = exchanges[: plan.connections]
        for _ in range(plan.rounds):
            tally, rate = Tally(), plan.share * await _fastest(few, turn, total, plan.seconds * _MOST_SHARE)
            await ask_open(exchanges, turn, tally, plan.seconds, rate, chance)
            rounds.append(Round(rate=rate, latencies=tuple(tally.latencies)))
            total.wrong += tally.wrong
            total.unsent += tally.unsent
    return RoundsOutcome(rounds=tuple(rounds), wrong=tuple(total.wrong), unsent=total.unsent)


async def _fastest(
    exchanges: Sequence[Exchange], turn: Iterator[Ready], total: Tally, seconds: float
) -> float:
    """The most requests a second that are possible now."""
    tally, began = Tally(), time.perf_counter()
    await ask_closed(exchanges, turn, tally, seconds)
    total.wrong += tally.wrong
    return len(tally.latencies) / (time.perf_counter() - began)


def main() -> None:
    """Run the plan of stdin."""
    plan = RoundsPlan.from_json(sys.stdin.buffer.read())
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        sys.stdout.write(runner.run(_run(plan)).to_json())


if __name__ == "__main__":
    main()
