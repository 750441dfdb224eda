"""Admission: limited across all processes, released with each final part, never leaked by a crash."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor

import pytest
import redis

from epd.contracts.errors import CorruptMedia
from epd.contracts.job import PartId, PartRecord, Priority, State
from epd.contracts.media import Modality
from epd.store import keys
from epd.store.admissions import Load
from epd.store.open import Store
from epd.store.values import Completed
from tests.contract.store_values import (
    AUDIO,
    IMAGE,
    admit,
    admitted_job,
    entry_of,
    key_of,
    new_job,
    wait_until,
    waiter_of,
)
from tests.store_kit import MakeStore

FAILED = PartRecord.failed(CorruptMedia("broken"))
BULK = Priority.BULK


def test_items_are_bounded(make_store: MakeStore) -> None:
    store = make_store(max_queue_items=10)
    assert admit(store, "one", 6)
    assert not admit(store, "two", 5)
    assert admit(store, "three", 4)
    assert store.admissions.held() == Load(10, 0)
    assert not admit(store, "four")


def test_bytes_are_bounded(make_store: MakeStore) -> None:
    store = make_store(max_queue_bytes=1000)
    assert admit(store, "one", 1, 600)
    assert not admit(store, "two", 1, 401)
    assert admit(store, "three", 1, 400)
    assert store.admissions.held() == Load(2, 1000)


def test_a_job_over_the_whole_limit_is_admitted_alone(make_store: MakeStore) -> None:
    store = make_store(max_queue_items=4, max_queue_bytes=10)
    assert admit(store, "large", 8, 100)
    assert not admit(store, "small")
    store.admissions.release("large")
    assert admit(store, "small")
    assert not admit(store, "large", 8, 100)


def test_bulk_leaves_a_quarter_to_interactive_jobs(make_store: MakeStore) -> None:
    store = make_store(max_queue_items=8, max_queue_bytes=80)
    assert admit(store, "bulk", 6, 60, BULK)
    assert not admit(store, "more", 1, 0, BULK)
    assert admit(store, "person", 2, 20)
    assert (store.admissions.held(BULK), store.admissions.held()) == (Load(6, 60), Load(8, 80))
    assert store.admissions.held(Priority.INTERACTIVE) == Load(2, 20)


def test_the_same_job_twice_is_held_once(store: Store) -> None:
    assert admit(store, "one", 3, 30)
    assert admit(store, "one", 3, 30)
    assert store.admissions.held() == Load(3, 30)
    store.admissions.release("one")
    store.admissions.release("one")
    store.admissions.release("never")
    assert store.admissions.held() == Load(0, 0)


def test_each_final_part_gives_its_share_back_once(store: Store) -> None:
    job = admitted_job(store, 4, 100)
    store.jobs.finish(job, PartId(2, Modality.IMAGE), FAILED)
    store.jobs.finish(job, PartId(2, Modality.IMAGE), FAILED)
    assert store.admissions.held() == Load(3, 75)
    store.jobs.close(job, PartRecord(state=State.CANCELLED))
    assert store.admissions.held() == Load(0, 0)


def test_an_item_with_two_parts_is_held_until_both_are_final(store: Store) -> None:
    job = admitted_job(store, 1, 50)
    store.jobs.add_part(job, AUDIO)
    store.jobs.finish(job, IMAGE, FAILED)
    assert store.admissions.held() == Load(1, 50)
    store.jobs.finish(job, AUDIO, FAILED)
    assert store.admissions.held() == Load(0, 0)


@pytest.mark.parametrize("good", [True, False])
def test_a_flight_gives_back_what_all_its_waiters_hold(store: Store, good: bool) -> None:
    jobs = [admitted_job(store, 1, 10) for _ in range(3)]
    for job in jobs:
        store.flights.claim(key_of(1), waiter_of(job))
    assert store.admissions.held() == Load(3, 30)
    if good:
        done = Completed(entry_of(key_of(1)), jobs[0], IMAGE, {})
        store.flights.complete([done])
        store.flights.complete([done])
    else:
        store.flights.fail(key_of(1), CorruptMedia("broken"))
    assert store.admissions.held() == Load(0, 0)


def test_an_expired_job_holds_nothing(store: Store) -> None:
    job = new_job(store, items=2)
    store.admissions.admit(job, Load(2, 20), priority=BULK, until=time.time() + 0.2)
    assert store.admissions.held(BULK) == Load(2, 20)
    wait_until(lambda: store.admissions.held() == Load(0, 0))


def test_concurrent_jobs_are_admitted_up_to_the_limit(make_store: MakeStore) -> None:
    store = make_store(max_queue_items=20)
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda number: admit(store, f"job-{number}", 3), range(32)))
    assert answers.count(True) == 6
    assert store.admissions.held() == Load(18, 0)


def test_a_job_that_was_never_made_is_found_by_its_check(make_store: MakeStore, server: redis.Redis) -> None:
    """What an api process leaves that dies between admission and job."""
    store = make_store()
    job = admitted_job(store, 2, 20)
    assert admit(store, "died", 5, 50)
    for name in (job, "died"):  # half a minute later
        server.zadd(keys.LOAD_CHECKS, {name: 0})
    assert store.admissions.held() == Load(2, 20)
    assert server.zscore(keys.LOAD_CHECKS, job) > 1000 * time.time()
    server.delete(keys.job(job))
    server.zadd(keys.LOAD_CHECKS, {job: 0})
    assert store.admissions.held() == Load(0, 0)
    assert not server.exists(keys.LOAD, keys.LOAD_JOBS, keys.LOAD_CHECKS)
