"""Qwen2-VL and Qwen3-VL: what they plan, where positions come from, and which checkpoints they refuse."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn import functional as F  # noqa: N812 - torch's own habit

from epd.contracts.errors import InvalidRequest, MediaTooLarge, SettingsError
from epd.contracts.media import ItemOptions
from gpu_worker.encoders.base import Encoder
from gpu_worker.encoders.qwen.layout import frame_places, pack_places
from tests.unit.encoders import tiny_checkpoints as tiny


@pytest.fixture(scope="module")
def qwen2(tmp_path_factory: pytest.TempPathFactory) -> Encoder:
    return tiny.tiny_encoder("qwen2_vl", tmp_path_factory.mktemp("plan"))


@pytest.fixture(scope="module")
def qwen3(tmp_path_factory: pytest.TempPathFactory) -> Encoder:
    return tiny.tiny_encoder("qwen3_vl", tmp_path_factory.mktemp("plan"))


def changed(
    folder: Path, family: str, config: dict[str, Any] | None = None, **files: dict[str, Any]
) -> Encoder:
    """The family's tiny checkpoint with other keys in ``vision_config``, or with preprocessor files."""
    path = tiny.tiny_folder(family, folder)
    whole = json.loads((path / "config.json").read_text())
    whole["vision_config"] |= config or {}
    (path / "config.json").write_text(json.dumps(whole))
    for name, content in files.items():
        (path / f"{name}.json").write_text(json.dumps(content))
    return tiny.encoder_at(family, path)


def test_qwen2_plans_as_its_successor(qwen2: Encoder, tmp_path: Path) -> None:
    newer = tiny.tiny_encoder("qwen2_5_vl", tmp_path)
    for raw in (tiny.raw_image(333, 500), tiny.raw_frames(5, 360, 640), tiny.raw_frames(768, 1080, 1920)):
        assert qwen2.plan(raw, tiny.NO_OPTIONS) == newer.plan(raw, tiny.NO_OPTIONS)


def test_qwen3_cells_are_32_pixels(qwen3: Encoder) -> None:
    plan = qwen3.plan(tiny.raw_image(333, 500), tiny.NO_OPTIONS)
    assert (plan.target, plan.facts.grid_thw, plan.tokens) == ((320, 512), (1, 20, 32), 160)
    assert (plan.facts.deepstack_levels, plan.facts.merge_size, qwen3.card.hidden) == (2, 2, 72)


@pytest.mark.parametrize(("frames", "steps"), [(1, 1), (2, 1), (5, 3), (8, 4)])
def test_qwen3_frames_keep_their_times(qwen3: Encoder, frames: int, steps: int) -> None:
    plan = qwen3.plan(tiny.raw_frames(frames, 180, 320, fps=2.0), tiny.NO_OPTIONS)
    assert plan.facts.grid_thw is not None
    assert plan.facts.grid_thw[0] == steps
    assert plan.facts.second_per_grid_ts == 1.0
    assert plan.facts.video_timestamps == tuple(i / 2 for i in range(frames))


def test_qwen3_takes_frames_by_its_own_rule(qwen3: Encoder) -> None:
    rules = qwen3.card.video
    assert rules is not None
    assert (rules.fps, rules.min_frames, rules.max_frames, rules.frame_multiple) == (2.0, 4, 768, 1)


@pytest.mark.parametrize("frames", [2, 3, 5, 7, 64])
def test_qwen3_bounds_all_frames_together(qwen3: Encoder, frames: int) -> None:
    """No more than 768 cells of 32 x 32 in the frames of a video, where no file says otherwise."""
    plan = qwen3.plan(tiny.raw_frames(frames, 1080, 1920), tiny.NO_OPTIONS)
    assert plan.target is not None
    bound = 768 * 32 * 32
    counted = min(frames, round(frames / 2) * 2)
    assert bound / 2 < frames * plan.target[0] * plan.target[1] <= bound * frames / counted


def test_the_video_file_is_obeyed(tmp_path: Path) -> None:
    size = {"longest_edge": 25165824, "shortest_edge": 4096}
    encoder = changed(
        tmp_path, "qwen3_vl", video_preprocessor_config={"size": size, "fps": 1, "max_frames": 9}
    )
    plan = encoder.plan(tiny.raw_frames(8, 1080, 1920), tiny.NO_OPTIONS)
    assert plan.target == (1088, 1920)
    assert encoder.card.video is not None
    assert (encoder.card.video.fps, encoder.card.video.max_frames) == (1.0, 9)


@pytest.mark.parametrize("frames", [2, 3, 5, 7])
def test_an_items_own_bounds_are_of_one_frame(qwen3: Encoder, frames: int) -> None:
    small = qwen3.plan(tiny.raw_frames(frames, 1080, 1920), ItemOptions(max_pixels=100_000))
    large = qwen3.plan(tiny.raw_frames(frames, 90, 160), ItemOptions(min_pixels=80_000))
    assert small.target is not None
    assert large.target is not None
    assert 50_000 < small.target[0] * small.target[1] <= 100_000
    assert large.target[0] * large.target[1] >= 80_000


@pytest.mark.parametrize(
    ("frames", "options"),
    [
        (64, ItemOptions(min_pixels=100_000)),
        (4, ItemOptions(max_pixels=16777217)),
        (4, ItemOptions(min_pixels=5000, max_pixels=4000)),
        (2, ItemOptions(max_pixels=1000)),
    ],
)
def test_impossible_bounds_of_a_video_are_refused(qwen3: Encoder, frames: int, options: ItemOptions) -> None:
    with pytest.raises(InvalidRequest, match="pixels"):
        qwen3.plan(tiny.raw_frames(frames, 360, 640), options)


def test_a_thin_image_is_refused(qwen2: Encoder, qwen3: Encoder) -> None:
    for encoder in (qwen2, qwen3):
        for raw in (tiny.raw_image(8, 2000), tiny.raw_frames(2, 8, 2000)):
            with pytest.raises(MediaTooLarge, match=r"aspect ratio 25\d\.\d"):
                encoder.plan(raw, tiny.NO_OPTIONS)


@pytest.mark.parametrize("grid", [(2, 2), (2, 30), (12, 12), (40, 6)])
def test_places_are_those_of_bilinear_interpolation(grid: tuple[int, int]) -> None:
    side, width = 12, 5
    table = torch.randn(side * side, width, generator=torch.Generator().manual_seed(3))
    places = frame_places(*grid, 2, side)
    got = (table[places.corners] * places.shares[:, :, None]).sum(1)
    plane = table.view(1, side, side, width).permute(0, 3, 1, 2)
    wanted = F.interpolate(plane, size=grid, mode="bilinear", align_corners=True)[0]
    cells = wanted.view(width, grid[0] // 2, 2, grid[1] // 2, 2).permute(1, 3, 2, 4, 0)
    torch.testing.assert_close(got, cells.reshape(-1, width), atol=1e-5, rtol=1e-5)


def test_places_repeat_for_each_frame() -> None:
    packed, one = pack_places([(3, 4, 6), (1, 2, 2)], 2, 8), frame_places(4, 6, 2, 8)
    assert torch.equal(packed.corners[:72], one.corners.repeat(3, 1))
    assert packed.shares.shape == (76, 4)
    torch.testing.assert_close(packed.shares.sum(1), torch.ones(76))


@pytest.mark.parametrize(
    ("family", "key", "value"),
    [
        ("qwen2_vl", "hidden_act", "relu"),
        ("qwen2_vl", "in_chans", 1),
        ("qwen2_vl", "embed_dim", None),
        ("qwen2_vl", "rope_parameters", {"rope_theta": 5000.0}),
        ("qwen3_vl", "hidden_act", "relu"),
        ("qwen3_vl", "num_position_embeddings", 35),
        ("qwen3_vl", "deepstack_visual_indexes", [1, 0]),
        ("qwen3_vl", "deepstack_visual_indexes", [0, 3]),
        ("qwen3_vl", "deepstack_visual_indexes", None),
        ("qwen3_vl", "patch_size", [16, 16]),
    ],
)
def test_another_tower_is_refused(tmp_path: Path, family: str, key: str, value: object) -> None:
    named = "rope_theta" if key == "rope_parameters" else key
    with pytest.raises(SettingsError, match=named):
        changed(tmp_path, family, {key: value})


@pytest.mark.parametrize(
    ("file", "content", "named"),
    [
        ("preprocessor_config", {"patch_size": 15}, "patch_size"),
        ("preprocessor_config", {"resample": 2}, "resample"),
        ("preprocessor_config", {"do_normalize": False}, "do_normalize"),
        ("video_preprocessor_config", {"temporal_patch_size": 1}, "temporal_patch_size"),
        ("video_preprocessor_config", {"num_frames": 8}, "num_frames"),
        ("video_preprocessor_config", {"image_mean": [0.1, 0.2, 0.3]}, "image_mean"),
    ],
)
@pytest.mark.parametrize("family", ["qwen2_vl", "qwen2_5_vl", "qwen3_vl"])
def test_another_preprocessing_is_refused(
    tmp_path: Path, family: str, file: str, content: dict[str, Any], named: str
) -> None:
    with pytest.raises(SettingsError, match=named):
        changed(tmp_path, family, **{file: content})


def test_the_capped_frame_rule_is_refused(tmp_path: Path) -> None:
    file = {"cap_pixels_per_frame": True}
    with pytest.raises(SettingsError, match="cap_pixels_per_frame"):
        changed(tmp_path, "qwen3_vl", video_preprocessor_config=file)
    for value in (None, False):
        changed(tmp_path, "qwen3_vl", video_preprocessor_config={"cap_pixels_per_frame": value})
