"""``python -m bench.encoder.load.generator``: open-loop load. It reads a plan and writes an outcome.

Each request has a planned time that does not depend on answers, and its latency counts from that time. So a
server that stalls is charged for every request that would have arrived during the stall (no coordinated
omission). A request never waits for a connection: another one is opened.
"""

from __future__ import annotations

import asyncio
import json
import re
import statistics
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import orjson
import uvloop
from pydantic import Field

from bench.hits.exchange import Exchange, connect, request_bytes
from bench.hits.load import quantile
from epd.contracts.media import Modality
from epd.contracts.wire import Wire

#: Connections that are open at most. A request that finds all of them busy waits, and is charged for that.
_MOST_CONNECTIONS = 512
#: Seconds after which an unused connection is not used again, since servers close it soon (uvicorn: 5).
_MOST_UNUSED = 3.0
_MOST_WRONG = 5
_KEY = re.compile(r"[0-9a-f]{64}")


class Request(Wire):
    """One request: its planned time in seconds from the start, and the URLs of its items."""

    at: float = Field(ge=0)
    urls: tuple[str, ...]


class Plan(Wire):
    """Requests in the order of their planned times, for the server on this port.

    With ``at_once``, planned times are ignored: so many requests are open all the time, until ``seconds`` are
    over. What is not answered ``drain`` seconds after the last planned time is given up: its connection is
    closed, which also cancels its job.
    """

    port: int
    type: Modality
    requests: tuple[Request, ...] = Field(min_length=1)
    at_once: int | None = Field(default=None, ge=1)
    seconds: float = Field(gt=0)
    drain: float = Field(gt=0)


class Outcome(Wire):
    """The result of a plan. Times are seconds.

    Attributes:
        planned: Requests whose time came.
        latencies: Of each request that succeeded, from its planned time to its answer; sorted.
        planned_rate: Requests a second.
        achieved_rate: Successful answers a second. It is the planned rate times the share that succeeded,
            stretched by the drift of the latencies: if answers come a second later at the end of ten seconds
            than at their start, the requests of ten seconds took eleven. So it has no noise from random
            arrivals. With ``at_once`` it is counted from the first answer to the last within ``seconds``.
        cached: Items that the server had cached.
        failures: Answers that were no success, and what they said.
        unanswered: Requests that were given up.
        wrong: What was wrong with answers that claimed success. The figures are valid only if it is empty.
        cpu: The load's own CPU seconds.
    """

    planned: int
    latencies: tuple[float, ...]
    planned_rate: float
    achieved_rate: float
    cached: int = 0
    failures: dict[str, int] = Field(default_factory=dict)
    unanswered: int = 0
    wrong: tuple[str, ...] = ()
    cpu: float = 0.0

    @property
    def success(self) -> float:
        """The share of the planned requests that succeeded."""
        return len(self.latencies) / max(1, self.planned)

    def percentile(self, percent: float) -> float:
        """The latency below which so many per cent of the successful requests lie; infinite without any."""
        return quantile(self.latencies, percent / 100) if self.latencies else float("inf")


@dataclass(slots=True)
class Tally:
    """Checks answers and counts them. Times are seconds from the start of the load."""

    type: Modality
    answers: list[tuple[float, float]] = field(default_factory=list)  #: planned time and latency
    cached: int = 0
    failures: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    _keys: dict[str, str] = field(default_factory=dict)  #: of each URL
    _urls: dict[str, str] = field(default_factory=dict)  #: of each key

    def take(self, request: Request, status: int, body: bytes, planned: float, now: float) -> None:
        """Check an answer and count it."""
        if status != 200:
            self.failures[f"status {status}"] += 1
            return
        answer = orjson.loads(body)
        if answer["state"] != "done":
            errors = {item["error"]["code"] for item in answer["items"] if item.get("error")}
            self.failures[" ".join([answer["state"], *sorted(errors)])] += 1
            return
        problem = self._problem(request, answer["items"])
        if problem and len(self.wrong) < _MOST_WRONG:
            self.wrong.append(problem)
        self.cached += sum(item["cached"] for item in answer["items"])
        self.answers.append((planned, now - planned))

    def _problem(self, request: Request, items: Sequence[dict[str, object]]) -> str:
        """What is wrong. Empty if each item is done, in order, with a key that is its URL's own."""
        if len(items) != len(request.urls):
            return f"{len(items)} items instead of {len(request.urls)}"
        for index, (url, item) in enumerate(zip(request.urls, items, strict=True)):
            if (item["index"], item["type"], item["state"]) != (index, self.type, "done"):
                return f"{url}: {json.dumps(item)[:200]}"
            embedding = item["embedding"]
            key = str(embedding["key"]) if isinstance(embedding, dict) else ""
            if not _KEY.fullmatch(key):
                return f"{url}: no embedding"
            if self._keys.setdefault(url, key) != key or self._urls.setdefault(key, url) != url:
                return f"{url}: its key {key} is that of another file, or not that of an earlier answer"
        return ""

    def outcome(self, plan: Plan, planned: Sequence[float]) -> Outcome:
        """The figures. ``planned`` has the times of the requests that were sent or should have been."""
        asked = len(planned) / plan.seconds
        share = len(self.answers) / len(planned)
        ends = sorted(at + latency for at, latency in self.answers if at + latency <= plan.seconds)
        unanswered = len(planned) - len(self.answers) - self.failures.total()
        return Outcome(
            planned=len(planned),
            latencies=tuple(sorted(latency for _, latency in self.answers)),
            planned_rate=asked,
            achieved_rate=rate(ends) if plan.at_once else share * asked / (1 + max(0.0, drift(self.answers))),
            cached=self.cached,
            failures=dict(self.failures),
            unanswered=unanswered,
            wrong=tuple(self.wrong),
            cpu=time.process_time(),
        )


def rate(times: Sequence[float]) -> float:
    """Events a second, from the first of these times to the last."""
    return (len(times) - 1) / (times[-1] - times[0]) if len(times) > 1 and times[-1] > times[0] else 0.0


def drift(answers: Sequence[tuple[float, float]]) -> float:
    """Seconds that latency grows in a second, of planned times with their latencies.

    Means over the first and the last fifth of the requests are compared, since single latencies vary.
    """
    ordered = sorted(answers)
    few = max(1, len(ordered) // 5)
    if len(ordered) < 2 * few:
        return 0.0
    (began, early), (ended, late) = (
        (statistics.fmean(at for at, _ in some), statistics.fmean(latency for _, latency in some))
        for some in (ordered[:few], ordered[-few:])
    )
    return (late - early) / (ended - began) if ended > began else 0.0


class Load:
    """Sends a plan's requests and tallies their answers."""

    def __init__(self, plan: Plan) -> None:
        """Nothing is sent yet."""
        self._plan = plan
        self._ready = [request_bytes(_body(plan.type, request)) for request in plan.requests]
        self._idle: list[tuple[float, Exchange]] = []  #: since when, the latest one last
        self._room = asyncio.Semaphore(_MOST_CONNECTIONS)
        self._tally = Tally(plan.type)
        self._began = 0.0

    async def run(self) -> Outcome:
        """Send every request at its time, or keep so many open; wait for answers."""
        self._began = time.perf_counter()
        planned = await (self._at_once() if self._plan.at_once else self._as_planned())
        for _, exchange in self._idle:
            exchange.close()
        return self._tally.outcome(self._plan, planned)

    def _now(self) -> float:
        return time.perf_counter() - self._began

    async def _as_planned(self) -> list[float]:
        asked = []
        for number, request in enumerate(self._plan.requests):
            await asyncio.sleep(max(0.0, request.at - self._now()))
            asked.append(asyncio.create_task(self._ask(number, request.at)))
        await self._finish(asked)
        return [request.at for request in self._plan.requests]

    async def _at_once(self) -> list[float]:
        planned: list[float] = []
        numbers = iter(range(len(self._ready)))

        async def drive() -> None:
            while (now := self._now()) < self._plan.seconds and (number := next(numbers, None)) is not None:
                planned.append(now)
                await self._ask(number, now)

        await self._finish([asyncio.create_task(drive()) for _ in range(self._plan.at_once or 1)])
        return planned

    async def _finish(self, tasks: Sequence[asyncio.Task[None]]) -> None:
        left = max(0.0, self._plan.seconds - self._now())
        _, pending = await asyncio.wait(tasks, timeout=left + self._plan.drain)
        for task in pending:
            task.cancel()
        for result in await asyncio.gather(*tasks, return_exceptions=True):
            if isinstance(result, Exception):
                raise result

    async def _ask(self, number: int, planned: float) -> None:
        async with self._room:
            exchange = await self._connection()
            try:
                status, body = await exchange.ask(self._ready[number])
            except ConnectionError:
                self._tally.failures["connection lost"] += 1
                exchange.close()
            except asyncio.CancelledError:
                exchange.close()
                raise
            else:
                self._tally.take(self._plan.requests[number], status, body, planned, self._now())
                self._idle.append((self._now(), exchange))

    async def _connection(self) -> Exchange:
        while self._idle:
            since, exchange = self._idle.pop()
            if self._now() - since < _MOST_UNUSED:
                return exchange
            exchange.close()
        return await connect(self._plan.port)


def _body(modality: Modality, request: Request) -> str:
    items = [{"type": modality.value, "url": url} for url in request.urls]
    return json.dumps({"items": items, "wait": 120, "on_disconnect": "cancel"})


def main() -> None:
    """Run the plan of stdin."""
    plan = Plan.from_json(sys.stdin.buffer.read())
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        sys.stdout.write(runner.run(Load(plan).run()).to_json())


if __name__ == "__main__":
    main()
