"""The instruments of the storms: they see what they are there to see."""

from __future__ import annotations

import time

import numpy as np
import pytest
import redis

from epd.contracts.job import Notice, State
from epd.store import keys
from tests.chaos.audit import TOLERANCE, relative_difference
from tests.chaos.corpus import MIXED, POSTERS, Corpus
from tests.chaos.notices import NoticeWatch
from tests.chaos.scenarios.catalogue import ALL
from tests.chaos.soak.sample import Sample
from tests.chaos.soak.slope import trends
from tests.chaos.world import wait_until


def test_a_corpus_never_repeats_itself_but_for_its_seed() -> None:
    types = (*MIXED, *POSTERS)
    things = Corpus(3).take(33, types)
    assert len({thing.data for thing in things}) == len({thing.name for thing in things}) == 33
    assert Corpus(3).take(33, types) == things
    assert not {thing.data for thing in Corpus(4).take(33, types)} & {thing.data for thing in things}


def test_a_difference_is_relative_to_the_largest_value() -> None:
    rows = np.random.default_rng(1).normal(size=(4, 8))
    assert relative_difference(rows, rows) == 0
    assert relative_difference(rows, rows[::-1]) > TOLERANCE
    assert relative_difference(1000 * rows, 1000 * rows + 1e-4) < TOLERANCE


def test_a_second_end_of_a_part_is_heard(real_server_url: str) -> None:
    url = f"{real_server_url}/13"
    watch, client = NoticeWatch(url), redis.Redis.from_url(url)
    watch.start()
    once, twice = (Notice(job_id=job, part="0.image", state=State.DONE).to_json() for job in ("a", "b"))
    running = Notice(job_id="a", part="0.image", state=State.RUNNING).to_json()
    assert wait_until(lambda: client.publish(keys.events("x"), running) > 0, 5)
    for text in (once, running, twice, twice):
        client.publish(keys.events("x"), text)
    assert wait_until(lambda: watch.ended_twice() == [("b", "0.image")], 5)
    assert watch.ended_at["a", "0.image"] <= time.monotonic()
    watch.close()
    client.close()


@pytest.mark.parametrize(("per_look", "flat"), [(0.0, True), (0.5, False), (-1.0, True)])
def test_growth_is_distinguished_from_noise(per_look: float, flat: bool) -> None:
    noise = np.random.default_rng(2).normal(0, 1, 100)
    samples = [
        Sample(2.0 * look, {"api_rss_mib": 100 + per_look * look + noise[look]}) for look in range(100)
    ]
    assert trends(samples)["api_rss_mib"].is_flat is flat


def test_scenarios_have_names_of_their_own() -> None:
    assert len({scenario.name for scenario in ALL}) == len(ALL)
