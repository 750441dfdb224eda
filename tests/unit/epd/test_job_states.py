"""States of items and jobs follow from the states of their parts."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from epd.contracts.errors import EpdError, Overloaded
from epd.contracts.job import (
    FINAL_STATES,
    ErrorInfo,
    JobRecord,
    JobView,
    PartId,
    PartRecord,
    State,
    combined_state,
)
from epd.contracts.media import Item, Modality, Source

SOURCE = Source(url="http://a.test/")
PART_FINALS = sorted(FINAL_STATES - {State.PARTIAL})


def _view(*items: dict[Modality, State]) -> JobView:
    """A job of items by their parts' states; the first part is the item's own."""
    record = JobRecord(
        job_id="0" * 32,
        model="demo",
        created=0,
        deadline=1,
        items=tuple(
            Item(index=index, modality=next(iter(parts)), source=SOURCE) for index, parts in enumerate(items)
        ),
        ids=(None,) * len(items),
    )
    states = {
        str(PartId(index, track)): PartRecord(state=state)
        for index, parts in enumerate(items)
        for track, state in parts.items()
    }
    return JobView(record=record, parts=states)


def _video(main: State, audio: State) -> JobView:
    return _view({Modality.VIDEO: main, Modality.AUDIO: audio})


@pytest.mark.parametrize("state", [State.QUEUED, State.RUNNING, *PART_FINALS])
def test_an_item_of_one_part_has_its_state(state: State) -> None:
    view = _view({Modality.IMAGE: state})
    assert (view.item_state(0), view.state) == (state, state)


@pytest.mark.parametrize(
    ("main", "audio", "item"),
    [
        (State.DONE, State.DONE, State.DONE),
        (State.DONE, State.FAILED, State.PARTIAL),
        (State.DONE, State.CANCELLED, State.PARTIAL),
        (State.FAILED, State.DONE, State.FAILED),
        (State.FAILED, State.FAILED, State.FAILED),
        (State.CANCELLED, State.DONE, State.CANCELLED),
        (State.DONE, State.QUEUED, State.RUNNING),
        (State.QUEUED, State.QUEUED, State.QUEUED),
        (State.FAILED, State.RUNNING, State.RUNNING),
    ],
)
def test_a_video_follows_its_frames_first(main: State, audio: State, item: State) -> None:
    assert _video(main, audio).item_state(0) is item


@pytest.mark.parametrize(
    ("states", "job"),
    [
        ((State.DONE, State.DONE), State.DONE),
        ((State.DONE, State.FAILED), State.PARTIAL),
        ((State.DONE, State.PARTIAL), State.PARTIAL),
        ((State.FAILED, State.FAILED), State.FAILED),
        ((State.FAILED, State.CANCELLED), State.CANCELLED),
        ((State.FAILED, State.EXPIRED), State.EXPIRED),
        ((State.DONE, State.QUEUED), State.RUNNING),
        ((State.QUEUED, State.QUEUED), State.QUEUED),
        ((), State.QUEUED),
    ],
)
def test_a_job_follows_its_items(states: tuple[State, ...], job: State) -> None:
    assert combined_state(states) is job


@given(st.lists(st.sampled_from(list(State)), min_size=1, max_size=6))
def test_a_combined_state_is_final_when_all_are_and_has_no_order(states: list[State]) -> None:
    combined = combined_state(states)
    assert (combined in FINAL_STATES) is all(state in FINAL_STATES for state in states)
    assert {combined_state(order) for order in itertools.islice(itertools.permutations(states), 24)} == {
        combined
    }
    assert combined_state([combined]) is combined


@given(st.integers(min_value=0, max_value=10**6), st.sampled_from(list(Modality)))
def test_a_part_id_reads_back(index: int, track: Modality) -> None:
    assert PartId.parse(str(PartId(index, track))) == PartId(index, track)


@pytest.mark.parametrize("text", ["", "3", "x.audio", "3.smell", "3.audio.x"])
def test_what_is_no_part_id_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r".+"):
        PartId.parse(text)


def _all_errors(base: type[EpdError] = EpdError) -> list[type[EpdError]]:
    return [base, *itertools.chain.from_iterable(_all_errors(child) for child in base.__subclasses__())]


@pytest.mark.parametrize("error", _all_errors(), ids=lambda error: error.__name__)
def test_every_error_says_what_it_is(error: type[EpdError]) -> None:
    info = ErrorInfo.of(error("what went wrong", retry_after=2))
    assert (info.code, info.message) == (error.code, "what went wrong")
    assert 400 <= info.status < 600
    assert info.status >= 500 or not info.retryable or error is Overloaded
