"""``python -m bench.hits.load``: the load, in a lean process. A plan on stdin, an outcome on stdout.

At a rate, requests have planned times that do not depend on answers, and latency counts from those. So a
stalled server is charged for every request that would have arrived in the meantime (no coordinated omission).
"""

from __future__ import annotations

import asyncio
import itertools
import random
import sys
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import orjson
import uvloop
from pydantic import Field

from bench.hits.exchange import Exchange, connect, request_bytes
from epd.contracts.wire import Wire


class Request(Wire):
    """A JSON body, and the embedding keys that its answer must name, in order."""

    body: str
    keys: tuple[str, ...]


class Plan(Wire):
    """A load of ``seconds``: as fast as ``connections`` allow, or at ``rate`` requests a second."""

    port: int
    requests: tuple[Request, ...]
    connections: int = Field(ge=1)
    seconds: float = Field(gt=0)
    rate: float | None = None
    seed: int = 1


class RoundsPlan(Wire):
    """Many turns: first as fast as ``connections`` allow, then at ``share`` of that rate.

    The part at the share takes ``seconds``, on ``connections_at_share``; the first takes a third of that.
    """

    port: int
    requests: tuple[Request, ...]
    connections: int = Field(ge=1)
    connections_at_share: int = Field(ge=1)
    rounds: int = Field(ge=1)
    seconds: float = Field(gt=0)
    share: float = Field(gt=0, lt=1)
    seed: int = 1


class Round(Wire):
    """A turn at ``rate`` requests a second. Latencies are seconds from a request's planned time."""

    rate: float
    latencies: tuple[float, ...]


class RoundsOutcome(Wire):
    """All turns. ``wrong`` and ``unsent`` as in ``Outcome``."""

    rounds: tuple[Round, ...]
    wrong: tuple[str, ...] = ()
    unsent: int = 0


class Outcome(Wire):
    """The result of a plan. Latencies are seconds; with a rate they count from a request's planned time.

    ``cpu`` is the load's own CPU seconds. ``wrong`` holds what was wrong with answers; the figures are valid
    only if it is empty. ``unsent`` counts requests whose planned time came, but for which no connection was
    free until the end.
    """

    answered: int
    seconds: float
    p50: float
    p99: float
    worst: float
    cpu: float
    wrong: tuple[str, ...] = ()
    unsent: int = 0


Ready = tuple[Request, bytes]

#: Errors that are kept; even one makes the figures invalid.
_MOST_WRONG = 5
#: Seconds that pending requests may take after the end.
_WAIT_SECONDS = 15.0


@dataclass(slots=True)
class Tally:
    """Seconds of each answer, and what was wrong with answers."""

    latencies: list[float] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    unsent: int = 0

    def take(self, request: Request, status: int, body: bytes, seconds: float) -> None:
        """Check an answer and count it."""
        self.latencies.append(seconds)
        problem = _problem(request, status, body)
        if problem and len(self.wrong) < _MOST_WRONG:
            self.wrong.append(problem)

    def outcome(self, seconds: float) -> Outcome:
        """The figures so far."""
        ordered = sorted(self.latencies) or [0.0]
        return Outcome(
            answered=len(self.latencies),
            seconds=seconds,
            p50=quantile(ordered, 0.5),
            p99=quantile(ordered, 0.99),
            worst=ordered[-1],
            cpu=time.process_time(),
            wrong=tuple(self.wrong),
            unsent=self.unsent,
        )


def quantile(ordered: Sequence[float], share: float) -> float:
    """The value below which this share of the ordered values lies."""
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def _problem(request: Request, status: int, body: bytes) -> str:
    """What is wrong with an answer. Empty if all is cached and names the right embeddings in order."""
    if status != 200:
        return f"status {status}: {body[:200]!r}"
    answer = orjson.loads(body)
    items = answer["items"]
    if answer["state"] != "done" or not all(item["cached"] and item["state"] == "done" for item in items):
        return f"not all done and cached: {body[:200]!r}"
    keys = tuple(item["embedding"]["key"] for item in items)
    if keys != request.keys or any(
        item["metadata"]["embedding_key"] != item["embedding"]["key"] for item in items
    ):
        return f"keys {keys} instead of {request.keys}"
    return ""


@asynccontextmanager
async def connected(port: int, count: int) -> AsyncIterator[list[Exchange]]:
    """Open connections to a server of this machine."""
    exchanges = [await connect(port) for _ in range(count)]
    try:
        yield exchanges
    finally:
        for exchange in exchanges:
            exchange.close()


def shuffled(requests: Sequence[Request], seed: int) -> Iterator[Ready]:
    """Requests with their bytes on the wire, in one random order, repeated for ever."""
    ready = [(request, request_bytes(request.body)) for request in requests]
    random.Random(seed).shuffle(ready)
    return itertools.cycle(ready)


async def _run(plan: Plan) -> Outcome:
    turn, tally = shuffled(plan.requests, plan.seed), Tally()
    async with connected(plan.port, plan.connections) as exchanges:
        began = time.perf_counter()
        if plan.rate is None:
            await ask_closed(exchanges, turn, tally, plan.seconds)
        else:
            await ask_open(exchanges, turn, tally, plan.seconds, plan.rate, random.Random(plan.seed))
        return tally.outcome(time.perf_counter() - began)


async def ask_closed(
    exchanges: Sequence[Exchange], turn: Iterator[Ready], tally: Tally, seconds: float
) -> None:
    """Every connection sends its next request as soon as it has its answer."""
    end = time.perf_counter() + seconds

    async def drive(exchange: Exchange) -> None:
        while (began := time.perf_counter()) < end:
            request, data = next(turn)
            status, body = await exchange.ask(data)
            tally.take(request, status, body, time.perf_counter() - began)

    async with asyncio.timeout(seconds + _WAIT_SECONDS):
        await asyncio.gather(*map(drive, exchanges))


async def ask_open(
    exchanges: Sequence[Exchange],
    turn: Iterator[Ready],
    tally: Tally,
    seconds: float,
    rate: float,
    chance: random.Random,
) -> None:
    """Requests arrive at exponential gaps (a Poisson process), whatever the answers do."""
    began = time.perf_counter()
    planned: asyncio.Queue[float] = asyncio.Queue()

    async def drive(exchange: Exchange) -> None:
        while True:
            at = await planned.get()
            request, data = next(turn)
            status, body = await exchange.ask(data)
            tally.take(request, status, body, time.perf_counter() - at)
            planned.task_done()

    drivers = [asyncio.create_task(drive(exchange)) for exchange in exchanges]
    at = began
    while (at := at + chance.expovariate(rate)) < began + seconds:
        await asyncio.sleep(max(0.0, at - time.perf_counter()))
        planned.put_nowait(at)
    done, _ = await asyncio.wait(
        [asyncio.create_task(planned.join()), *drivers], timeout=_WAIT_SECONDS, return_when="FIRST_COMPLETED"
    )
    tally.unsent += planned.qsize()
    for driver in drivers:
        driver.cancel()
    for failed in await asyncio.gather(*drivers, return_exceptions=True):
        if isinstance(failed, Exception):
            raise failed
    if not done:
        raise TimeoutError("answers are missing long after the last request")


def main() -> None:
    """Run the plan of stdin."""
    plan = Plan.from_json(sys.stdin.buffer.read())
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        sys.stdout.write(runner.run(_run(plan)).to_json())


if __name__ == "__main__":
    main()
