"""``split_by_offset``: items before, across and after the offset, and exactly the rows still needed."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from epd.client import HandoffRequest, Placement, Slice, split_by_offset
from epd.client.prompt import Across, rows_before
from epd.contracts.errors import InvalidRequest

pytestmark = pytest.mark.unit


def key_of(number: int) -> str:
    return f"{number:064x}"


def placed(
    number: int, offset: int, length: int, spans: tuple[tuple[int, int], ...] | None = None
) -> Placement:
    return Placement(key=key_of(number), offset=offset, length=length, spans=spans)


@st.composite
def prompts(draw: st.DrawFn) -> HandoffRequest:
    """Items in order with text between: one run, several runs, or no placeholder at all."""
    at, items = draw(st.integers(0, 5)), []
    for number in range(draw(st.integers(0, 6))):
        spans = []
        for _ in range(draw(st.integers(0, 4))):
            length = draw(st.integers(1, 6))
            spans.append((at, length))
            at += length + draw(st.integers(0, 3))
        first = spans[0][0] if spans else at
        total = sum(length for _, length in spans)
        items.append(placed(number, first, total, tuple(spans) if len(spans) > 1 else None))
    return HandoffRequest(items=tuple(items), prompt_tokens=at + 1)


def places(item: Placement) -> list[int]:
    """Row by row: the place of its placeholder in the prompt."""
    return [place for first, length in item.runs for place in range(first, first + length)]


@given(prompts(), st.integers(0, 90))
def test_rows_are_needed_exactly_where_their_placeholder_is_behind_the_offset(
    prompt: HandoffRequest, offset: int
) -> None:
    split = split_by_offset(prompt, offset)
    assert list(split.before) == [i for i in prompt.items if i in split.before]
    for item in prompt.items:
        behind = [row for row, place in enumerate(places(item)) if place >= offset]
        across = [part for part in split.across if part.item == item]
        found = [item in split.before, bool(across), item in split.after]
        assert sum(found) == 1
        if item in split.before:
            assert behind == []
        elif item in split.after:
            assert behind == list(range(item.length))
        else:
            assert behind == list(range(across[0].start, across[0].stop))
            assert 0 < len(behind) < item.length


@given(prompts(), st.integers(0, 90))
def test_what_is_needed_is_in_the_order_of_the_prompt(prompt: HandoffRequest, offset: int) -> None:
    split = split_by_offset(prompt, offset)
    wanted = {part.item.key: part.start for part in split.across} | dict.fromkeys(
        (item.key for item in split.after), 0
    )
    order = [item.key for item in prompt.items if item.key in wanted]
    assert [(part.key, part.start, part.stop) for part in split.needed()] == [
        (key, wanted[key], None) for key in order
    ]


@given(prompts())
def test_nothing_is_before_the_beginning_and_nothing_after_the_end(prompt: HandoffRequest) -> None:
    begin, end = split_by_offset(prompt, 0), split_by_offset(prompt, prompt.prompt_tokens or 0)
    assert (begin.before, begin.across, begin.after) == ((), (), prompt.items)
    assert (end.before, end.across, end.after) == (prompt.items, (), ())


@given(prompts(), st.integers(0, 90), st.integers(0, 90))
def test_a_longer_prefix_never_needs_more(prompt: HandoffRequest, one: int, two: int) -> None:
    short, long = sorted((one, two))
    for item in prompt.items:
        assert rows_before(item, short) <= rows_before(item, long) <= item.length


@pytest.mark.parametrize(
    ("offset", "before", "across", "after"),
    [
        (10, [], [], [1, 2]),
        (11, [], [(1, 1, 4)], [2]),
        (13, [], [(1, 3, 4)], [2]),
        (14, [1], [], [2]),
        (20, [1], [], [2]),
        (21, [1], [(2, 1, 2)], []),
        (22, [1, 2], [], []),
    ],
)
def test_the_borders(
    offset: int, before: list[int], across: list[tuple[int, int, int]], after: list[int]
) -> None:
    items = [placed(1, 10, 4), placed(2, 20, 2)]
    split = split_by_offset(items, offset)
    assert [item.key for item in split.before] == [key_of(n) for n in before]
    assert [(part.item.key, part.start, part.stop) for part in split.across] == [
        (key_of(number), start, stop) for number, start, stop in across
    ]
    assert [item.key for item in split.after] == [key_of(n) for n in after]


def test_a_border_inside_a_video_of_several_runs() -> None:
    video = placed(7, 2, 9, ((2, 3), (8, 3), (14, 3)))
    for offset, start in ((5, 3), (8, 3), (10, 5), (14, 6), (16, 8)):
        assert split_by_offset([video], offset).across == (Across(video, start, 9),)
        assert split_by_offset([video], offset).needed() == [Slice(key=video.key, start=start)]


def test_an_item_without_placeholders_is_needed_whole_until_it_is_passed() -> None:
    speech = placed(3, 0, 0)
    assert split_by_offset([speech], 0).needed() == [Slice(key=speech.key)]
    assert split_by_offset([speech], 1).needed() == []


def test_a_negative_offset_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="-1"):
        split_by_offset([], -1)
