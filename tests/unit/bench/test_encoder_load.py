"""The load of bench.encoder: arrivals, files, checked answers, and the rule of the knee."""

from __future__ import annotations

import argparse
import asyncio
import json
import random
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from itertools import islice, pairwise
from typing import Any

import pytest

from bench.encoder.load.generator import Load, Outcome, Plan, Request, Tally, drift
from bench.encoder.load.options import device_model
from bench.encoder.load.sides import Reading
from bench.encoder.load.sweep import Point, Sweep, knee
from bench.encoder.load.traffic import Arrivals, Mix, Traffic, planned_times, zipf_ranks
from bench.encoder.site.device import DeviceModel
from bench.encoder.site.files import Kind
from bench.encoder.site.media import Media
from epd.contracts.media import Modality

URLS = ("http://m/a", "http://m/b")
KEYS = {url: f"{number:064x}" for number, url in enumerate(URLS)}


def answer(urls: tuple[str, ...] = URLS, **changes: Any) -> bytes:
    """An answer in which the first item has these changes."""
    items: list[dict[str, Any]] = [
        {"index": index, "type": "image", "state": "done", "cached": False, "embedding": {"key": KEYS[url]}}
        for index, url in enumerate(urls)
    ]
    items[0] |= changes
    return json.dumps({"state": "done", "items": items}).encode()


def point(planned: float, achieved: float, p50: float, p99: float, *, failed: int = 0) -> Point:
    """A load of 200 requests."""
    latencies = [p50] * (190 - failed) + [p99] * 10
    outcome = Outcome(planned=200, latencies=tuple(latencies), planned_rate=planned, achieved_rate=achieved)
    return Point(outcome, 4, Reading({"api": 1.0}, {}))


@pytest.mark.parametrize("arrivals", list(Arrivals))
def test_arrivals_have_the_rate_that_was_asked_for(arrivals: Arrivals) -> None:
    times = planned_times(arrivals, 50.0, 4.0, random.Random(1))
    assert len(times) == 200
    assert times == sorted(times)
    assert 0 <= times[0] <= times[-1] <= 4.0


def test_constant_arrivals_have_equal_gaps_and_random_ones_have_those_of_a_poisson_process() -> None:
    constant = planned_times(Arrivals.CONSTANT, 10.0, 2.0, random.Random(1))
    assert {round(late - early, 9) for early, late in pairwise(constant)} == {0.1}
    times = planned_times(Arrivals.POISSON, 1000.0, 10.0, random.Random(1))
    gaps = [late - early for early, late in pairwise(times)]
    mean = sum(gaps) / len(gaps)
    variance = sum((gap - mean) ** 2 for gap in gaps) / len(gaps)
    assert variance == pytest.approx(mean**2, rel=0.1)


def test_zipf_ranks_are_drawn_in_proportion_to_one_over_the_rank() -> None:
    drawn = Counter(islice(zipf_ranks(100, 1.0, random.Random(1)), 50_000))
    assert set(drawn) <= set(range(100))
    for rank in (1, 3, 9):
        assert drawn[0] / drawn[rank] == pytest.approx(rank + 1, rel=0.15)


def test_requests_of_the_distinct_mix_share_no_file_and_popular_ones_come_again() -> None:
    def urls(mix: Mix) -> list[str]:
        traffic = Traffic(Media("http://m"), Kind.SMALL, 4, mix, Arrivals.POISSON)
        requests = [*traffic.at_rate(20.0, 5.0, seed=1), *traffic.at_once(50, seed=2)]
        assert all(len(set(request.urls)) == 4 for request in requests)
        return [url for request in requests for url in request.urls]

    distinct, popular = urls(Mix.DISTINCT), urls(Mix.ZIPF)
    assert len(set(distinct)) == len(distinct) == 600
    assert len(set(popular)) < len(popular)


def test_a_load_is_the_same_each_time() -> None:
    traffic = Traffic(Media("http://m"), Kind.SMALL, 2, Mix.ZIPF, Arrivals.POISSON)
    assert traffic.at_rate(20.0, 5.0, seed=1) == traffic.at_rate(20.0, 5.0, seed=1)
    assert traffic.at_rate(20.0, 5.0, seed=1) != traffic.at_rate(20.0, 5.0, seed=2)


def test_a_good_answer_counts_from_its_planned_time() -> None:
    tally = Tally(Modality.IMAGE)
    tally.take(Request(at=1.0, urls=URLS), 200, answer(cached=True), 1.0, 1.25)
    assert (tally.answers, tally.cached, tally.wrong) == ([(1.0, 0.25)], 1, [])


@pytest.mark.parametrize(
    "body",
    [
        answer(URLS[:1]), answer(state="failed"), answer(index=1), answer(type="video"),
        answer(embedding=None), answer(embedding={"key": "short"}), answer(embedding={"key": KEYS[URLS[1]]}),
    ],
)  # fmt: skip
def test_a_wrong_answer_is_seen(body: bytes) -> None:
    tally = Tally(Modality.IMAGE)
    tally.take(Request(at=0.0, urls=URLS), 200, body, 0.0, 0.1)
    assert len(tally.wrong) == 1


def test_another_key_for_the_same_file_is_seen() -> None:
    tally = Tally(Modality.IMAGE)
    for key in ("a" * 64, "b" * 64):
        request = Request(at=0.0, urls=URLS[:1])
        tally.take(request, 200, answer(URLS[:1], embedding={"key": key}), 0.0, 0.1)
    assert len(tally.wrong) == 1


def test_failures_are_counted_by_what_they_say() -> None:
    tally = Tally(Modality.IMAGE)
    failed = {"state": "failed", "items": [{"state": "failed", "error": {"code": "source_timeout"}}]}
    for status, body in ((429, b"{}"), (200, json.dumps(failed).encode())):
        tally.take(Request(at=0.0, urls=URLS[:1]), status, body, 0.0, 0.1)
    assert tally.failures == {"status 429": 1, "failed source_timeout": 1}
    assert not tally.answers


def test_latency_that_grows_lowers_the_achieved_rate() -> None:
    """Ten requests a second of which eight are answered: each second, latency grows by a quarter."""
    request = Request(at=0.0, urls=URLS)
    planned = [number / 10 for number in range(100)]
    plan = Plan(port=1, type=Modality.IMAGE, requests=(request,), seconds=10.0, drain=1.0)
    tally = Tally(Modality.IMAGE, answers=[(at, 0.2 + at / 4) for at in planned])
    assert tally.outcome(plan, planned).achieved_rate == pytest.approx(8.0)
    steady = Tally(Modality.IMAGE, answers=[(at, 0.2) for at in planned[:50]])
    outcome = steady.outcome(plan, planned)
    assert outcome.achieved_rate == pytest.approx(5.0)
    assert (outcome.unanswered, outcome.success) == (50, 0.5)


def test_one_answer_has_no_drift() -> None:
    assert drift([]) == drift([(0.0, 1.0)]) == 0.0


def test_percentiles_are_of_the_successful_requests() -> None:
    outcome = Outcome(planned=100, latencies=tuple(range(1, 101)), planned_rate=1.0, achieved_rate=1.0)
    assert [outcome.percentile(one) for one in (50, 90, 99)] == [51, 91, 100]
    empty = Outcome(planned=1, latencies=(), planned_rate=1.0, achieved_rate=0.0)
    assert empty.percentile(50) == float("inf")


def test_the_knee_is_the_highest_rate_that_a_server_keeps_up_with() -> None:
    light, heavy = point(10, 10, 0.1, 0.2), point(20, 19.2, 0.3, 0.9)
    behind, failing = point(40, 36, 0.5, 0.9), point(30, 30, 0.3, 0.9, failed=5)
    slow = point(30, 30, 0.3, 1.1)
    assert knee([heavy, behind, failing, slow, light]) is heavy
    assert knee([behind]) is None
    assert Sweep(25.0, [light, heavy, behind]).figures()["knee_qps"] == 19.2


def test_a_point_divides_what_was_spent_by_the_items_that_were_answered() -> None:
    spent = Reading(
        {"api": 1.6}, {"batches": 100.0, "encoded": 800.0, "round_trips": 1600.0, "commands": 0.0}
    )
    outcome = Outcome(planned=200, latencies=(0.1,) * 200, planned_rate=10.0, achieved_rate=10.0, cached=80)
    figures = Point(outcome, 4, spent).figures()
    assert figures["cpu_ms_an_item"] == {"api": 2.0}
    assert (figures["items_a_batch"], figures["round_trips_an_item"]) == (8.0, 2.0)
    assert (figures["cached_share"], figures["items_per_s"]) == (0.1, 40.0)
    assert Reading({"api": 3.0}, {}).since(Reading({"api": 1.4}, {})).cpu == {"api": 1.6}


def test_a_device_model_is_two_costs_or_none() -> None:
    assert device_model("30,1") == DeviceModel(30.0, 1.0)
    assert device_model("none") is None
    parser = argparse.ArgumentParser(exit_on_error=False)
    parser.add_argument("--device-model", type=device_model)
    for text in ("30", "a,b", "-1,0"):
        with pytest.raises(argparse.ArgumentError, match=text):
            parser.parse_args([f"--device-model={text}"])
    assert parser.parse_args(["--device-model", "0,2.5"]).device_model == DeviceModel(0.0, 2.5)


@asynccontextmanager
async def stalled_server(seconds: float) -> AsyncIterator[int]:
    """A server that answers nothing for so many seconds, and then each request at once; its port."""
    opened = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            while head := await reader.readuntil(b"\r\n\r\n"):
                await reader.readexactly(int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0]))
                await opened.wait()
                body = answer()
                writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body))
        writer.close()
        await writer.wait_closed()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    asyncio.get_running_loop().call_later(seconds, opened.set)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        opened.set()
        await asyncio.sleep(0.05)  # for the connections to close


async def test_a_server_that_stalls_is_charged_for_every_request_that_arrives_in_that_time() -> None:
    requests = tuple(Request(at=0.02 * number, urls=URLS) for number in range(10))
    async with stalled_server(0.3) as port:
        plan = Plan(port=port, type=Modality.IMAGE, requests=requests, seconds=0.2, drain=10.0)
        outcome = await Load(plan).run()
    assert (outcome.planned, outcome.success, outcome.wrong) == (10, 1.0, ())
    assert outcome.latencies[0] >= 0.1
    assert outcome.latencies[-1] >= 0.28


async def test_requests_without_an_answer_are_given_up() -> None:
    requests = (Request(at=0.0, urls=URLS),) * 3
    async with stalled_server(60.0) as port:
        plan = Plan(port=port, type=Modality.IMAGE, requests=requests, seconds=0.05, drain=0.05)
        outcome = await Load(plan).run()
    assert (outcome.unanswered, outcome.latencies) == (3, ())
