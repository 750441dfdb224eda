"""Pieces of items: their segments, raw media and rows; and keys that change with all they depend on."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from epd.contracts.errors import BlobMissing
from epd.contracts.media import RawAudio, RawFrames
from epd.identity import segment_key
from gpu_worker.encoders.base import DecodeFacts, ItemPlan
from gpu_worker.engine.batcher import split
from gpu_worker.engine.device import CpuDevice
from gpu_worker.engine.forward import EagerRunner, ForwardPass, Rows
from gpu_worker.engine.slot import Planned, piece_of
from gpu_worker.engine.staging import StagedItem, map_blob
from gpu_worker.service.segment_cache import segment_keys
from tests.unit.encoders.tiny_checkpoints import (
    NO_OPTIONS,
    random_image,
    raw_audio,
    raw_frames,
    tiny_encoder,
)
from tests.unit.engine.slot_makers import make_slot


def plan_of(segments: int, tokens: tuple[int, ...] = ()) -> ItemPlan:
    return ItemPlan(
        tokens=sum(tokens) or segments * 3, cost=segments * 5, bucket="b", segments=(5,) * segments,
        segment_tokens=tokens, raw_step=2, facts=DecodeFacts(grid_thw=(segments, 4, 6), merge_size=2),
    )  # fmt: skip


@given(count=st.integers(1, 30), numbers=st.sets(st.integers(0, 29), min_size=1))
def test_a_piece_takes_its_segments_of_the_raw_in_order(count: int, numbers: set[int]) -> None:
    chosen = {number % count for number in numbers}
    wanted = sorted(chosen)
    piece = piece_of(plan_of(count), wanted)
    raw = torch.arange(2 * count - 1)  # the last pair is half there
    taken = torch.cat([raw[run] for run in piece.runs]).tolist()
    assert taken == [entry for entry in range(2 * count - 1) if entry // 2 in chosen]
    assert (piece.plan.tokens, piece.plan.cost) == (3 * len(wanted), 5 * len(wanted))
    assert piece.plan.facts.grid_thw == (len(wanted), 4, 6)
    assert all(a.stop < b.start for a, b in zip(piece.runs, piece.runs[1:], strict=False))


def test_segments_may_give_rows_of_their_own_number() -> None:
    plan = plan_of(4, tokens=(7, 7, 7, 0))
    assert piece_of(plan, [1, 3]).plan.tokens == 7
    assert piece_of(plan, [1, 3]).plan.segment_tokens == (7, 0)
    parts = split(plan, 5)
    assert [part.plan.tokens for part in parts] == [7, 7, 7], "what gives no row is not run"


def test_media_that_cannot_be_cut_give_no_piece() -> None:
    with pytest.raises(ValueError, match="cannot be cut"):
        piece_of(ItemPlan(tokens=1, cost=1, bucket="b", segments=(1,)), [0])


def write(path: Path, data: bytes) -> Path:
    path.write_bytes(data)
    return path


def test_a_slot_with_a_piece_is_staged_without_the_rest(tmp_path: Path) -> None:
    frames = random_image(4, 6, frames=7)
    path = write(tmp_path / "raw", frames.numpy().tobytes())
    slot = replace(make_slot(path=path), raw=raw_frames(7, 4, 6), piece=piece_of(plan_of(4), [0, 3]))
    assert torch.equal(map_blob(slot), torch.cat([frames[0:2], frames[6:7]]))


FAMILIES = ["whisper", "qwen2_audio", "dinov2", "clip", "siglip", "qwen2_vl", "qwen2_5_vl", "qwen3_vl"]


@pytest.mark.parametrize("family", FAMILIES)
def test_segments_are_independent(family: str, tmp_path: Path) -> None:
    """Each alone gives the rows that it has in the whole item: what reuse rests on."""
    torch.set_num_threads(1)
    encoder = tiny_encoder(family, tmp_path)
    if family in ("whisper", "qwen2_audio"):
        samples = 480_000 * 2 + 12_345
        raw: RawAudio | RawFrames = raw_audio(samples)
        # Each window is louder than the one before: a floor over all of them would show.
        noise = torch.randn(samples, generator=torch.Generator().manual_seed(1))
        values = noise * torch.linspace(0.01, 1, samples)
    else:
        raw, values = raw_frames(5, 60, 90), random_image(60, 90, frames=5)
    plan = encoder.plan(raw, NO_OPTIONS)

    def rows(raw_values: torch.Tensor, its: ItemPlan) -> torch.Tensor:
        staged = StagedItem(Planned(make_slot(), its), raw_values, 0.0)
        (made,) = ForwardPass(CpuDevice(), EagerRunner(), 1 << 20).run(encoder, [staged])
        assert isinstance(made, Rows), made
        return made.packed

    whole = rows(values, plan).split(plan.tokens_of_segments())
    assert len(whole) == 3 if family not in ("dinov2", "clip", "siglip") else 5
    for index, expected in enumerate(whole):
        piece = piece_of(plan, [index])
        alone = rows(torch.cat([values[run] for run in piece.runs]), piece.plan)
        torch.testing.assert_close(alone, expected, rtol=1e-5, atol=1e-5)


def test_windows_that_share_a_floor_cannot_be_cut(tmp_path: Path) -> None:
    plan = tiny_encoder("qwen2_5_omni_audio", tmp_path).plan(raw_audio(100_000), NO_OPTIONS)
    assert plan.raw_step is None


KEY = {"encoder": "e" * 64, "media": "frames", "shape": (2, 4, 6), "target": (28, 56), "digest": "d" * 64}


@pytest.mark.parametrize(
    "change",
    [
        {"encoder": "f" * 64},
        {"media": "audio"},
        {"shape": (2, 6, 4)},
        {"shape": (4, 4, 6)},
        {"shape": (24, 6)},
        {"target": (56, 28)},
        {"target": ()},
        {"shape": (2, 4), "target": (6, 28, 56)},
        {"digest": "c" * 64},
    ],
)
def test_each_field_changes_the_key(change: dict[str, object]) -> None:
    assert segment_key(**KEY) != segment_key(**(KEY | change))  # type: ignore[arg-type]


def test_keys_are_of_each_segments_own_bytes(tmp_path: Path) -> None:
    frames = random_image(4, 6, frames=5)
    path = write(tmp_path / "raw", frames.numpy().tobytes())
    keys = segment_keys(path, raw_frames(5, 4, 6), plan_of(3), "e" * 64)
    digests = [hashlib.sha256(frames[at : at + 2].numpy().tobytes()).hexdigest() for at in (0, 2, 4)]
    shapes = [(2, 4, 6), (2, 4, 6), (1, 4, 6)]
    common = {"encoder": "e" * 64, "media": "frames", "target": ()}
    assert keys == tuple(
        segment_key(shape=shape, digest=digest, **common)  # type: ignore[arg-type]
        for shape, digest in zip(shapes, digests, strict=True)
    )


@pytest.mark.parametrize("data", [b"", bytes(71), bytes(73)])
def test_a_blob_of_another_size_is_missing(tmp_path: Path, data: bytes) -> None:
    with pytest.raises(BlobMissing):
        segment_keys(write(tmp_path / "raw", data), raw_frames(1, 4, 6), plan_of(1), "e" * 64)
    with pytest.raises(BlobMissing):
        segment_keys(tmp_path / "gone", raw_frames(1, 4, 6), plan_of(1), "e" * 64)
