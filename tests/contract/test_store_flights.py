"""Single-flight: one encode per key across the fleet, and every waiting part is finished once."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from epd.contracts.errors import CorruptMedia
from epd.contracts.job import PartRecord, State
from epd.store.open import Store
from epd.store.values import Claim, Completed
from tests.contract.store_values import (
    AUDIO,
    IMAGE,
    data_of,
    entry_of,
    key_of,
    new_job,
    part_of,
    put_embedding,
    wait_until,
    waiter_of,
)
from tests.store_kit import MakeStore

KEY = key_of(1)
LEASE = 0.4


def _complete(store: Store, job_id: str, key: str = KEY) -> int:
    entry = entry_of(key)
    store.embeddings.publish_file(entry.ref, data_of(entry), {})
    return store.flights.complete([Completed(entry, job_id, IMAGE, {"encode": 0.5})])[0]


def test_the_first_claims_the_flight_and_the_others_wait(store: Store) -> None:
    first, second = new_job(store), new_job(store)
    assert store.flights.claim(KEY, waiter_of(first)) is Claim.OWNED
    assert store.flights.claim(KEY, waiter_of(second)) is Claim.WAITING
    assert store.flights.claim(KEY, waiter_of(first)) is Claim.OWNED


def test_two_parts_of_one_job_are_two_waiters(store: Store) -> None:
    job = new_job(store)
    assert store.flights.claim(KEY, waiter_of(job, IMAGE)) is Claim.OWNED
    assert store.flights.claim(KEY, waiter_of(job, AUDIO)) is Claim.WAITING


def test_of_many_threads_one_owns_the_flight(make_store: MakeStore) -> None:
    store = make_store()
    jobs = [new_job(store) for _ in range(16)]
    gate = threading.Barrier(len(jobs))

    def claim(job: str) -> Claim:
        gate.wait(10)
        return store.flights.claim(KEY, waiter_of(job))

    with ThreadPoolExecutor(len(jobs)) as pool:
        claims = list(pool.map(claim, jobs))
    assert sorted(claims) == [Claim.OWNED] + [Claim.WAITING] * 15
    owner = jobs[claims.index(Claim.OWNED)]
    assert _complete(store, owner) == 16
    assert {part_of(store, job).state for job in jobs} == {State.DONE}


def test_completion_finishes_each_waiter_and_gives_timings_to_the_maker_alone(store: Store) -> None:
    maker, other = new_job(store), new_job(store)
    store.flights.claim(KEY, waiter_of(maker))
    store.flights.claim(KEY, waiter_of(other))
    assert _complete(store, maker) == 2
    made, shared = part_of(store, maker), part_of(store, other)
    assert (made.state, made.ref, made.timings) == (State.DONE, entry_of(KEY).ref, {"encode": 0.5})
    assert (shared.state, shared.metadata, shared.timings) == (State.DONE, entry_of(KEY).metadata, {})
    assert store.flights.claim(KEY, waiter_of(new_job(store))) is Claim.HIT


def test_completing_again_finishes_no_part_and_counts_no_byte_twice(store: Store) -> None:
    job = put_embedding(store, KEY).job_id
    before = store.embeddings.stats()
    assert _complete(store, job) == 0
    assert store.embeddings.stats() == before


def test_concurrent_completions_of_one_flight_finish_each_part_once(store: Store) -> None:
    jobs = [new_job(store) for _ in range(8)]
    for job in jobs:
        store.flights.claim(KEY, waiter_of(job))
    with ThreadPoolExecutor(4) as pool:
        counts = list(pool.map(lambda _: _complete(store, jobs[0]), range(4)))
    assert sum(counts) == len(jobs)
    assert store.embeddings.stats().nbytes == entry_of(KEY).ref.nbytes


def test_a_batch_is_completed_item_by_item(store: Store) -> None:
    jobs = [new_job(store) for _ in range(3)]
    entries = [entry_of(key_of(10 + index), tokens=index + 1) for index in range(3)]
    for job, entry in zip(jobs, entries, strict=True):
        store.flights.claim(entry.ref.key, waiter_of(job))
        store.embeddings.publish_file(entry.ref, data_of(entry), {})
    batch = [Completed(entry, job, IMAGE, {}) for job, entry in zip(jobs, entries, strict=True)]
    assert store.flights.complete(batch) == [1, 1, 1]
    assert store.embeddings.lookup([entry.ref.key for entry in entries]) == entries
    assert store.flights.complete([]) == []


def test_the_maker_is_finished_though_its_claim_is_lost(store: Store) -> None:
    job = new_job(store)
    assert _complete(store, job) == 1
    assert part_of(store, job).timings == {"encode": 0.5}


def test_a_waiter_gets_a_track_that_its_job_did_not_know_of(store: Store) -> None:
    maker, other = new_job(store), new_job(store)
    store.flights.claim(KEY, waiter_of(maker))
    store.flights.claim(KEY, waiter_of(other, AUDIO))
    _complete(store, maker)
    assert part_of(store, other, AUDIO).state is State.DONE
    assert part_of(store, other, IMAGE).state is State.QUEUED


def test_a_job_that_is_gone_stays_gone(store: Store) -> None:
    store.flights.claim(KEY, waiter_of("0" * 32))
    assert _complete(store, "0" * 32) == 0
    assert store.jobs.view("0" * 32) is None


def test_failure_finishes_every_waiter_with_its_error_and_frees_the_key(store: Store) -> None:
    first, second = new_job(store), new_job(store)
    store.flights.claim(KEY, waiter_of(first))
    store.flights.claim(KEY, waiter_of(second))
    assert store.flights.fail(KEY, CorruptMedia("broken off")) == 2
    error = part_of(store, second).error
    assert error is not None
    assert (error.code, error.status, error.retryable) == ("corrupt_media", 422, False)
    assert store.flights.fail(KEY, CorruptMedia("again")) == 0
    assert store.flights.claim(KEY, waiter_of(new_job(store))) is Claim.OWNED


def test_a_part_that_is_final_is_not_failed(store: Store) -> None:
    job = new_job(store)
    store.flights.claim(KEY, waiter_of(job))
    store.jobs.finish(job, IMAGE, PartRecord(state=State.CANCELLED))
    assert store.flights.fail(KEY, CorruptMedia("late")) == 0
    assert part_of(store, job).state is State.CANCELLED


def test_withdrawing_a_waiter_leaves_the_flight(store: Store) -> None:
    first, second = new_job(store), new_job(store)
    store.flights.claim(KEY, waiter_of(first))
    store.flights.claim(KEY, waiter_of(second))
    assert store.flights.withdraw(KEY, second, IMAGE) is None
    assert store.flights.claim(KEY, waiter_of(new_job(store))) is Claim.WAITING
    assert _complete(store, first) == 2


def test_withdrawing_the_owner_hands_the_flight_to_a_waiter(store: Store) -> None:
    first, second, third = new_job(store), new_job(store), new_job(store)
    for job in (first, second, third):
        store.flights.claim(KEY, waiter_of(job))
    message = store.flights.withdraw(KEY, first, IMAGE)
    assert message in {f"message of {second}", f"message of {third}"}
    assert store.flights.claim(KEY, waiter_of(third)) is Claim.OWNED
    assert store.flights.claim(KEY, waiter_of(second)) is Claim.WAITING


def test_withdrawing_the_last_waiter_ends_the_flight(store: Store) -> None:
    first = new_job(store)
    store.flights.claim(KEY, waiter_of(first))
    assert store.flights.withdraw(KEY, first, IMAGE) is None
    assert store.flights.withdraw(KEY, first, IMAGE) is None
    assert store.flights.claim(KEY, waiter_of(new_job(store))) is Claim.OWNED


def test_withdrawing_skips_waiters_whose_job_is_over(store: Store) -> None:
    first, second = new_job(store), new_job(store)
    store.flights.claim(KEY, waiter_of(first))
    store.flights.claim(KEY, waiter_of(second))
    store.jobs.close(second, PartRecord(state=State.CANCELLED))
    assert store.flights.withdraw(KEY, first, IMAGE) is None


def test_an_orphaned_flight_gives_one_message_once_a_lease(make_store: MakeStore) -> None:
    store = make_store(flight_lease=LEASE)
    first, second = new_job(store), new_job(store)
    store.flights.claim(KEY, waiter_of(first))
    store.flights.claim(KEY, waiter_of(second))
    assert store.flights.orphans() == []
    found: list[str] = []
    wait_until(lambda: bool(found.extend(store.flights.orphans()) or found))
    assert len(found) == 1
    assert found[0] in {f"message of {first}", f"message of {second}"}
    assert store.flights.orphans() == []
    # The reaper that got it died: it is given again.
    wait_until(lambda: store.flights.orphans() != [])


def test_reapers_at_once_get_each_flight_once(make_store: MakeStore) -> None:
    store = make_store(flight_lease=LEASE)
    jobs = [new_job(store) for _ in range(20)]
    for number, job in enumerate(jobs):
        store.flights.claim(key_of(100 + number), waiter_of(job))
    time.sleep(LEASE)  # every lease ends; what is looked for comes only then
    with ThreadPoolExecutor(4) as pool:
        given = [
            message for part in pool.map(lambda _: store.flights.orphans(), range(4)) for message in part
        ]
    assert sorted(given) == sorted(f"message of {job}" for job in jobs)


def test_orphans_are_bounded(make_store: MakeStore) -> None:
    store = make_store(flight_lease=LEASE)
    for number in range(5):
        store.flights.claim(key_of(200 + number), waiter_of(new_job(store)))
    found: list[int] = []

    def look() -> bool:
        found.append(len(store.flights.orphans(limit=2)))
        return sum(found) >= 5

    wait_until(look)
    assert max(found) == 2


def test_no_message_is_given_for_a_job_that_is_over(make_store: MakeStore) -> None:
    store = make_store(flight_lease=LEASE)
    over, open_job = new_job(store), new_job(store)
    store.flights.claim(KEY, waiter_of(over))
    store.flights.claim(KEY, waiter_of(open_job))
    store.jobs.finish(over, IMAGE, PartRecord(state=State.EXPIRED))
    found: list[str] = []
    wait_until(lambda: bool(found.extend(store.flights.orphans()) or found))
    assert found == [f"message of {open_job}"]


def test_an_expired_lease_is_free_and_its_waiters_stay(make_store: MakeStore) -> None:
    store = make_store(flight_lease=LEASE)
    first, second = new_job(store), new_job(store)
    store.flights.claim(KEY, waiter_of(first))
    wait_until(lambda: store.flights.claim(KEY, waiter_of(second)) is Claim.OWNED)
    assert _complete(store, second) == 2


def test_an_extended_lease_is_not_orphaned(make_store: MakeStore) -> None:
    store = make_store(flight_lease=1.0)
    first, second = new_job(store), new_job(store)
    store.flights.claim(KEY, waiter_of(first))
    end = time.monotonic() + 1.5
    while time.monotonic() < end:
        store.flights.extend([KEY])
        assert store.flights.orphans() == []
        assert store.flights.claim(KEY, waiter_of(second)) is Claim.WAITING
        time.sleep(0.05)


@pytest.mark.parametrize("message", ["", "{}", 'with "quotes" \\ and \n lines', "größe 图"])
def test_messages_come_back_as_they_were(make_store: MakeStore, message: str) -> None:
    store = make_store(flight_lease=LEASE)
    store.flights.claim(KEY, waiter_of(new_job(store), message=message))
    found: list[str] = []
    wait_until(lambda: bool(found.extend(store.flights.orphans()) or found))
    assert found == [message]
