"""Flights that make no embedding (downloads): the leader serves all waiters and loses none."""

from __future__ import annotations

from collections.abc import Callable

from epd.store.open import Store
from epd.store.values import Claim, Waiter
from tests.contract.store_values import AUDIO, IMAGE, key_of, new_job, wait_until, waiter_of

MakeStore = Callable[..., Store]
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
