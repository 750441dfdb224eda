"""Handoff documents: order, overlaps, spans, rows, and limits on their size."""

from __future__ import annotations

import re

import pytest
from pydantic import ValidationError

from epd.contracts.embedding import Metadata
from epd.contracts.handoff import MAX_EXTRA_BYTES, HandoffItem, HandoffRequest, Placed, Placement, Slice
from epd.contracts.media import Modality

pytestmark = pytest.mark.unit

KEY = "a" * 64


def known(**changes: object) -> Metadata:
    fields: dict[str, object] = {
        "embedding_key": KEY, "content_digest": "b" * 64, "modality": Modality.IMAGE, "encoder": "eye",
        "dtype": "float32", "token_count": 6, "hidden": 8, "grid_thw": (1, 4, 6), "merge_size": 2,
    }  # fmt: skip
    return Metadata.model_validate(fields | changes)


def request(*items: dict[str, object], **fields: object) -> HandoffRequest:
    return HandoffRequest.model_validate({"items": [{"key": KEY} | item for item in items], **fields})


def test_one_run_and_several() -> None:
    one = Placed(offset=4, length=6)
    assert (one.runs, one.end) == (((4, 6),), 10)
    woven = Placed(offset=4, length=6, spans=((4, 2), (9, 4)))
    assert (woven.runs, woven.end) == (((4, 2), (9, 4)), 13)
    bare = Placed(offset=4, length=0)
    assert (bare.runs, bare.end) == ((), 4)


@pytest.mark.parametrize(
    ("place", "why"),
    [
        ({"offset": 4, "length": 6, "spans": [(5, 2), (9, 4)]}, "spans do not begin at offset"),
        ({"offset": 4, "length": 7, "spans": [(4, 2), (9, 4)]}, "not length tokens together"),
        ({"offset": 4, "length": 6, "spans": [(4, 6)]}, "at least 2"),
        ({"offset": 4, "length": 6, "spans": [(4, 6), (9, 0)]}, "a span is empty"),
        ({"offset": 4, "length": 6, "spans": [(4, 3), (6, 3)]}, "spans overlap"),
        ({"offset": 9, "length": 6, "spans": [(9, 3), (4, 3)]}, "order of the prompt"),
        ({"offset": 4, "length": 0, "spans": [(4, 1 << 64), (9, -(1 << 64))]}, "less than or equal to"),
        ({"offset": -1, "length": 6}, "greater than or equal to 0"),
    ],
)
def test_impossible_places_are_refused(place: dict[str, object], why: str) -> None:
    with pytest.raises(ValidationError, match=why):
        Placed.model_validate(place)


@pytest.mark.parametrize(
    ("items", "fields", "why"),
    [
        ([(0, 4), (3, 4)], {}, "overlap"),
        ([(9, 4), (3, 4)], {}, "not in the order"),
        ([(0, 4)], {"prompt_tokens": 3}, "behind the end"),
        ([(0, 4)], {"prompt_tokens": 0}, "greater than or equal to 1"),
        ([(0, 4)], {"colour": "red"}, "not permitted"),
        ([(0, 4)], {"extra": {"x": "y" * MAX_EXTRA_BYTES}}, "over 4096 bytes"),
    ],
)
def test_impossible_prompts_are_refused(
    items: list[tuple[int, int]], fields: dict[str, object], why: str
) -> None:
    with pytest.raises(ValidationError, match=why):
        request(*({"offset": offset, "length": length} for offset, length in items), **fields)


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e400", "[{}, -1e999]", '{"y": NaN}'])
def test_numbers_outside_json_are_refused(number: str) -> None:
    with pytest.raises(ValidationError, match="NaN, Infinity"):
        HandoffRequest.from_json(f'{{"items": [], "extra": {{"x": {number}}}}}')
    with pytest.raises(ValidationError, match="finite number"):
        HandoffRequest(items=(), extra={"x": [float("inf")]})


def test_items_may_interleave() -> None:
    video = {"offset": 2, "length": 4, "spans": [(2, 2), (7, 2)]}
    audio = {"offset": 4, "length": 5, "spans": [(4, 3), (9, 2)]}
    assert len(request(video, audio, prompt_tokens=11).items) == 2
    with pytest.raises(ValidationError, match="overlap"):
        request(video, audio | {"spans": [(4, 4), (9, 1)]})


@pytest.mark.parametrize(("length", "fits"), [(6, True), (0, True), (5, False), (7, False)])
def test_placeholders_are_as_many_as_rows(length: int, fits: bool) -> None:
    if fits:
        assert HandoffItem(offset=0, length=length, metadata=known()).key == KEY
        return
    with pytest.raises(ValidationError, match=f"{length} placeholders at 0, 6 rows: length may be 6 or 0"):
        HandoffItem(offset=0, length=length, metadata=known())


def test_an_engine_may_drop_the_class_token_of_each_frame() -> None:
    frames = known(grid_thw=(3, 2, 2), merge_size=1, prefix_tokens=1, token_count=15)
    for length in (15, 12, 0):
        assert HandoffItem(offset=0, length=length, metadata=frames)
    said = re.escape("14 placeholders at 0, 15 rows: length may be 12 (without class tokens), 15 or 0")
    with pytest.raises(ValidationError, match=said):
        HandoffItem(offset=0, length=14, metadata=frames)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("token_count", 1 << 41), ("hidden", 1 << 64), ("grid_thw", (1, 0, 6)), ("grid_thw", (1, 1 << 64, 6)),
        ("grid_thw", (1, -4, -6)), ("merge_size", 0), ("merge_size", -2), ("prefix_tokens", -1),
        ("prefix_tokens", 1 << 64), ("audio_feature_lengths", (1 << 64,)), ("deepstack_levels", -1),
        ("deepstack_levels", 1 << 64), ("original_size", (1, 1 << 64)), ("source_frames", -1),
        ("source_frames", 1 << 64), ("source_bytes", 1 << 64), ("source_bytes", -1), ("encoder", "e" * 65),
        ("dtype", "d" * 99), ("content_digest", "d" * 999), ("weights_digest", "d" * 999),
    ],
)  # fmt: skip
def test_metadata_is_bounded(field: str, value: object) -> None:
    with pytest.raises(ValidationError) as caught:
        known(**{field: value})
    assert {error["loc"][0] for error in caught.value.errors()} == {field}


def test_metadata_must_belong_to_its_key() -> None:
    assert Placement(key=KEY, offset=0, length=6, metadata=known()).metadata is not None
    with pytest.raises(ValidationError, match="another key"):
        Placement(key="c" * 64, offset=0, length=6, metadata=known())


@pytest.mark.parametrize(
    "rows", [{"start": 3, "stop": 3}, {"start": 4, "stop": 2}, {"start": -1}, {"stop": 0}]
)
def test_a_slice_holds_rows(rows: dict[str, int]) -> None:
    with pytest.raises(ValidationError):
        Slice.model_validate({"key": KEY} | rows)


def test_an_item_takes_a_few_hundred_bytes() -> None:
    """With every field of an image that a large encoder has; docs/handoff.md states the figures."""
    image = known(
        encoder="qwen3-vl-8b-vision", dtype="bfloat16", token_count=2040, grid_thw=(1, 68, 120), hidden=16384,
        deepstack_levels=3, original_size=(1920, 1080), source_frames=1, weights_digest="d" * 64,
    )  # fmt: skip
    item = HandoffItem(offset=123456, length=2040, metadata=image)
    assert 400 < len(item.to_json()) <= 560
    assert len(Placement(key=KEY, offset=123456, length=2040).to_json()) <= 110
