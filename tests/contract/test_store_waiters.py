"""Waiters of a flight: served by its leader, and finished once although workers come back from the dead."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from epd.contracts.errors import CorruptMedia, WorkerCrashed
from epd.contracts.job import PartRecord, Stage, State
from epd.store.admissions import Load
from epd.store.open import Store
from epd.store.values import Claim, Completed, Waiter
from tests.contract.store_values import (
    AUDIO,
    IMAGE,
    admitted_job,
    entry_of,
    key_of,
    listen_until,
    new_job,
    part_of,
    wait_until,
    waiter_of,
)
from tests.store_kit import MakeStore

KEY = key_of(1)


def take_waiters(store: Store, job: str, served: list[Waiter] | None = None) -> list[Waiter]:
    return store.flights.take_waiters(KEY, job, IMAGE, served or [])


def test_the_leader_gets_the_others_until_it_has_served_them(store: Store) -> None:
    jobs = [new_job(store) for _ in range(3)]
    claims = [store.flights.claim(KEY, waiter_of(job)) for job in jobs]
    assert claims == [Claim.OWNED, Claim.WAITING, Claim.WAITING]
    others = take_waiters(store, jobs[0])
    assert {one.message for one in others} == {f"message of {job}" for job in jobs[1:]}
    assert sorted(take_waiters(store, jobs[0]), key=lambda one: one.name) == sorted(
        others, key=lambda one: one.name
    )
    late = new_job(store)
    assert store.flights.claim(KEY, waiter_of(late)) is Claim.WAITING
    (last,) = take_waiters(store, jobs[0], others)
    assert last.message == f"message of {late}"
    assert take_waiters(store, jobs[0], [last]) == []
    assert store.flights.active([KEY]) == [False]
    assert store.flights.claim(KEY, waiter_of(late)) is Claim.OWNED


def test_a_part_that_does_not_lead_gets_and_changes_nothing(store: Store) -> None:
    leader, other = new_job(store), new_job(store)
    store.flights.claim(KEY, waiter_of(leader))
    store.flights.claim(KEY, waiter_of(other))
    assert take_waiters(store, other) == []
    assert take_waiters(store, new_job(store)) == []
    assert len(take_waiters(store, leader)) == 1


def test_a_flight_without_waiters_ends_at_once(store: Store) -> None:
    job = new_job(store)
    store.flights.claim(KEY, waiter_of(job))
    assert take_waiters(store, job) == []
    assert store.flights.active([KEY]) == [False]
    assert store.flights.orphans() == []


def test_a_leader_whose_lease_ended_still_gets_its_waiters_unless_another_took_over(
    make_store: MakeStore,
) -> None:
    store = make_store(flight_lease=0.3)
    leader, other = new_job(store), new_job(store)
    store.flights.claim(KEY, waiter_of(leader))
    store.flights.claim(KEY, waiter_of(other, AUDIO))
    assert store.flights.active([KEY, key_of(2)]) == [True, False]
    wait_until(lambda: store.flights.active([KEY]) == [False])
    assert len(take_waiters(store, leader)) == 1
    wait_until(lambda: store.flights.claim(KEY, waiter_of(other, AUDIO)) is Claim.OWNED)
    assert take_waiters(store, leader) == []


def test_more_waiters_than_one_call_gives_are_all_served(store: Store) -> None:
    jobs = [new_job(store) for _ in range(200)]
    for job in jobs:
        store.flights.claim(KEY, waiter_of(job))
    seen: set[str] = set()
    served: list[Waiter] = []
    while served := take_waiters(store, jobs[0], served):
        seen |= {one.message for one in served}
    assert seen == {f"message of {job}" for job in jobs[1:]}


def test_no_flights_need_no_round_trip(store: Store) -> None:
    assert store.flights.active([]) == []


CRASHED = PartRecord.failed(WorkerCrashed("it died too often"))


def completed(job: str, seconds: float) -> Completed:
    """The same embedding, with the times of one of its makers."""
    return Completed(entry_of(KEY), job, IMAGE, {"forward": seconds})


def test_two_workers_that_end_one_encode_change_the_state_once(store: Store) -> None:
    job, waiter = new_job(store, watcher="w"), admitted_job(store, 1, 10)
    store.notices.listen("w", 0)
    for one in (job, waiter):
        store.flights.claim(KEY, waiter_of(one))
    assert store.flights.complete([completed(job, 1.0)]) == [2]
    assert store.flights.complete([completed(job, 2.0)]) == [0]
    assert part_of(store, job).timings == {"forward": 1.0}
    assert store.embeddings.stats().entries == 1
    assert store.admissions.held() == Load(0, 0)
    assert [notice.state for notice in listen_until(store, "w", 2, seconds=1)] == [State.DONE]


def test_of_many_that_come_back_at_once_one_counts(store: Store) -> None:
    jobs = [admitted_job(store, 1, 10) for _ in range(3)]
    for job in jobs:
        store.flights.claim(KEY, waiter_of(job))
    with ThreadPoolExecutor(8) as pool:
        counts = list(pool.map(lambda n: store.flights.complete([completed(jobs[0], n)])[0], range(16)))
    assert sum(counts) == len(jobs)
    assert store.admissions.held() == Load(0, 0)
    assert store.embeddings.stats().entries == 1


def test_a_late_result_does_not_undo_a_failure_but_fills_the_cache(store: Store) -> None:
    """The poison rule failed the item while its worker was only frozen."""
    job = admitted_job(store)
    store.flights.claim(KEY, waiter_of(job))
    store.jobs.finish(job, IMAGE, CRASHED)
    assert store.flights.complete([completed(job, 1.0)]) == [0]
    assert part_of(store, job) == CRASHED
    assert store.flights.claim(KEY, waiter_of(new_job(store))) is Claim.HIT
    assert store.admissions.held() == Load(0, 0)


@pytest.mark.parametrize("state", [State.CANCELLED, State.EXPIRED])
def test_a_late_result_does_not_undo_a_closed_job(store: Store, state: State) -> None:
    job = admitted_job(store, 2)
    store.flights.claim(KEY, waiter_of(job))
    store.jobs.close(job, PartRecord(state=state))
    assert store.flights.complete([completed(job, 1.0)]) == [0]
    assert store.flights.fail(KEY, CorruptMedia("broken")) == 0
    assert part_of(store, job).state is state
    assert not store.jobs.advance(job, IMAGE, Stage.ENCODE)


def test_a_late_failure_does_not_undo_a_result(store: Store) -> None:
    job = new_job(store)
    store.flights.claim(KEY, waiter_of(job))
    store.flights.complete([completed(job, 1.0)])
    assert store.flights.fail(KEY, CorruptMedia("broken")) == 0
    assert not store.jobs.finish(job, IMAGE, CRASHED)
    assert part_of(store, job).state is State.DONE


def test_who_comes_back_cannot_end_the_flight_of_its_successor(make_store: MakeStore) -> None:
    store = make_store(flight_lease=0.2)
    frozen, successor = new_job(store), new_job(store)
    assert store.flights.claim(KEY, waiter_of(frozen)) is Claim.OWNED
    assert store.flights.claim(KEY, waiter_of(successor)) is Claim.WAITING
    wait_until(lambda: store.flights.claim(KEY, waiter_of(successor)) is Claim.OWNED)
    assert store.flights.claim(KEY, waiter_of(frozen)) is Claim.WAITING
    assert store.flights.withdraw(KEY, frozen, IMAGE) is None
    assert store.flights.complete([completed(successor, 1.0)]) == [1]
    assert part_of(store, successor).state is State.DONE


def test_the_same_job_submitted_twice_is_one_job(store: Store) -> None:
    """A retry of the api's write after a lost answer."""
    job = admitted_job(store, 2, 20)
    store.jobs.finish(job, IMAGE, CRASHED)
    view = store.jobs.view(job)
    assert view is not None
    store.jobs.create(view.record, {IMAGE: PartRecord()})
    assert part_of(store, job) == CRASHED
    assert store.admissions.held() == Load(1, 10)
