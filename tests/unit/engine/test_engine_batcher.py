"""The batcher and the packing of a batch: nothing lost, nothing twice, bounds kept, nobody starves."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from epd.contracts.errors import EncodeFailed, MediaTooLarge
from epd.contracts.job import Priority
from epd.contracts.media import ItemOptions, RawMedia
from gpu_worker.encoders.base import ItemPlan
from gpu_worker.engine.batcher import BULK_EVERY, Batcher, Budget, Take, pack, plan_slot
from gpu_worker.engine.slot import Failed, Planned
from tests.unit.engine.slot_makers import make_planned, make_slot

NOW = 100.0

planned_slots = st.builds(
    lambda cost, bucket, encoder, priority, life: make_planned(
        cost, bucket=bucket, slot=make_slot(encoder=encoder, priority=priority, deadline=NOW + life)
    ),
    cost=st.integers(1, 20),
    bucket=st.sampled_from(["small", "large"]),
    encoder=st.sampled_from(["eye", "ear"]),
    priority=st.sampled_from(list(Priority)),
    life=st.sampled_from([-1.0, 1.0, 50.0]),
)
budgets = st.builds(Budget, max_items=st.integers(1, 6), max_cost=st.integers(1, 40))


def filled(slots: list[Planned], budget: Budget) -> Batcher:
    batcher = Batcher(budget)
    for one in slots:
        batcher.add(one)
    return batcher


def takes_until_empty(batcher: Batcher) -> list[Take]:
    takes: list[Take] = []
    while len(batcher):
        takes.append(batcher.take(NOW))
    return takes


@settings(max_examples=200, deadline=None)
@given(slots=st.lists(planned_slots, max_size=40), budget=budgets)
def test_every_slot_comes_out_exactly_once(slots: list[Planned], budget: Budget) -> None:
    takes = takes_until_empty(filled(slots, budget))
    out = [one.slot.id for take in takes for one in (*take.batch, *take.expired)]
    assert sorted(out) == sorted(one.slot.id for one in slots)
    late = {one.slot.id for one in slots if one.slot.deadline <= NOW}
    assert {one.slot.id for take in takes for one in take.expired} == late


@settings(max_examples=200, deadline=None)
@given(slots=st.lists(planned_slots, max_size=40), budget=budgets)
def test_a_batch_is_of_one_lane_and_within_its_budget(slots: list[Planned], budget: Budget) -> None:
    for take in takes_until_empty(filled(slots, budget)):
        assert len({(one.slot.encoder, one.plan.bucket) for one in take.batch}) <= 1
        assert len(take.batch) <= budget.max_items
        cost = sum(one.plan.cost for one in take.batch)
        assert cost <= budget.max_cost or len(take.batch) == 1


@settings(max_examples=100, deadline=None)
@given(
    before=st.integers(0, 12),
    priority=st.sampled_from(list(Priority)),
    arriving=st.lists(st.integers(1, 5), min_size=200, max_size=200),
)
def test_no_slot_starves_under_a_stream_of_newer_ones(
    before: int, priority: Priority, arriving: list[int]
) -> None:
    """Two newer interactive slots come for each batch of two; the old one is still served in bounded time."""
    batcher = filled([make_planned(1) for _ in range(before)], Budget(max_items=2, max_cost=10))
    old = make_planned(1, slot=make_slot(priority=priority))
    batcher.add(old)
    for count, cost in enumerate(arriving):
        for _ in range(2):
            batcher.add(make_planned(cost))
        if old in batcher.take(NOW).batch:
            assert count <= before + 2 * BULK_EVERY
            return
    pytest.fail("the old slot was never served")


def test_interactive_goes_first_and_bulk_leads_every_fourth_batch() -> None:
    bulk = [make_planned(slot=make_slot(priority=Priority.BULK)) for _ in range(3)]
    batcher = filled([*bulk, *(make_planned() for _ in range(8))], Budget(max_items=1, max_cost=10))
    order = [take.batch[0].slot.priority for take in takes_until_empty(batcher)]
    assert order[:8] == [Priority.INTERACTIVE] * 3 + [Priority.BULK] + [Priority.INTERACTIVE] * 3 + [
        Priority.BULK
    ]


def test_a_part_batch_is_given_at_once_and_filled_up_with_bulk() -> None:
    bulk = make_planned(slot=make_slot(priority=Priority.BULK))
    batcher = filled([bulk, make_planned()], Budget(max_items=8, max_cost=100))
    assert len(batcher.take(NOW).batch) == 2


def test_an_oversized_item_is_a_batch_of_its_own() -> None:
    batcher = filled([make_planned(1000), make_planned(1)], Budget(max_items=4, max_cost=10))
    assert [len(take.batch) for take in takes_until_empty(batcher)] == [1, 1]


def test_removed_slots_do_not_come_out_and_an_id_is_taken_once() -> None:
    one, two = make_planned(), make_planned()
    batcher = filled([one, two], Budget(max_items=4, max_cost=10))
    assert batcher.remove(one.slot.id) is one
    assert batcher.remove(one.slot.id) is None
    with pytest.raises(ValueError, match="already queued"):
        batcher.add(two)
    assert batcher.drain() == [two]
    assert len(batcher) == 0


def test_first_fit_decreasing_fills_the_room_that_is_left() -> None:
    leader = make_planned(3)
    group = [make_planned(cost) for cost in (2, 6, 5, 1)]
    chosen = pack(leader, [group], Budget(max_items=9, max_cost=10))
    assert [one.plan.cost for one in chosen] == [3, 6, 1]


def test_a_budget_without_room_is_refused() -> None:
    with pytest.raises(ValueError, match="room for one item"):
        Budget(max_items=0, max_cost=1)


class _Refusing:
    def __init__(self, error: Exception) -> None:
        self.error = error

    def plan(self, raw: RawMedia, options: ItemOptions) -> ItemPlan:
        raise self.error


def test_an_item_whose_plan_raises_fails_alone() -> None:
    too_large = plan_slot(make_slot(), _Refusing(MediaTooLarge("200:1")))
    assert isinstance(too_large, Failed)
    assert isinstance(too_large.error, MediaTooLarge)
    bug = plan_slot(make_slot(), _Refusing(ZeroDivisionError()))
    assert isinstance(bug, Failed)
    assert isinstance(bug.error, EncodeFailed)


@settings(max_examples=200, deadline=None)
@given(
    first=st.lists(planned_slots, min_size=1, max_size=12), later=st.lists(planned_slots, max_size=20),
    budget=budgets,
)  # fmt: skip
def test_a_batch_that_is_filled_up_stays_of_one_lane_and_within_its_budget(
    first: list[Planned], later: list[Planned], budget: Budget
) -> None:
    batcher = filled(first, budget)
    batch = list(batcher.take(NOW).batch)
    for one in later:
        batcher.add(one)
    if not batch:
        return
    could = batcher.can_fill(batch)
    more = batcher.take_more(batch, NOW)
    assert not more.batch or could
    whole = [*batch, *more.batch]
    assert len({(one.slot.encoder, one.plan.bucket) for one in whole}) == 1
    assert len(whole) <= budget.max_items
    assert len(whole) == 1 or sum(one.plan.cost for one in whole) <= budget.max_cost
    assert not any(one.slot.deadline <= NOW for one in more.batch)
    assert not batcher.can_fill(whole)
    out = [one.slot.id for one in (*more.batch, *more.expired, *batcher.drain())]
    assert len(out) == len(set(out))
    assert {one.slot.id for one in later} <= set(out)


def test_interactive_slots_fill_a_batch_up_first() -> None:
    batcher = filled([make_planned(5)], Budget(max_items=9, max_cost=10))
    batch = batcher.take(NOW).batch
    bulk = make_planned(4, slot=make_slot(priority=Priority.BULK))
    urgent, other = make_planned(3), make_planned(1, bucket="other")
    for one in (bulk, urgent, other):
        batcher.add(one)
    assert batcher.take_more(batch, NOW).batch == (urgent,)
    assert len(batcher) == 2
