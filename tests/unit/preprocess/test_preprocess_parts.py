"""Normalise, patchify, crop rule, smart resize and log-mel, each against a plain reading of its rule."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from epd.contracts.errors import MediaTooLarge, SettingsError
from gpu_worker.preprocess.fit import CropRule, crop_rule, smart_size
from gpu_worker.preprocess.mel import MelRule, log_mel, mel_filters
from gpu_worker.preprocess.resample import Filter
from gpu_worker.preprocess.tensors import CLIP_SCALE, normalise, pad_frames, patchify

DEFAULT = CropRule(shortest_edge=256, crop=(224, 224))
CPU = torch.device("cpu")


def test_normalise_follows_the_formula() -> None:
    levels = torch.arange(2 * 3 * 4 * 5, dtype=torch.uint8).view(2, 3, 4, 5)
    got = normalise(levels, CLIP_SCALE)
    for colour in range(3):
        wanted = (levels[:, colour].double() / 255 - CLIP_SCALE.mean[colour]) / CLIP_SCALE.std[colour]
        torch.testing.assert_close(got[:, colour].double(), wanted, atol=1e-6, rtol=0)


def test_patches_come_cell_by_cell() -> None:
    patch, merge, temporal, rows, columns = 2, 2, 2, 3, 2
    frames = torch.arange(4 * 3 * rows * 4 * columns * 4, dtype=torch.float32)
    frames = frames.view(4, 3, rows * patch * merge, columns * patch * merge)
    wanted = []
    for t in range(2):
        for cy in range(rows):
            for cx in range(columns):
                for my in range(merge):
                    for mx in range(merge):
                        y, x = (cy * merge + my) * patch, (cx * merge + mx) * patch
                        cut = frames[2 * t : 2 * t + 2, :, y : y + patch, x : x + patch]
                        wanted.append(cut.transpose(0, 1).flatten())
    assert torch.equal(patchify(frames, patch=patch, merge=merge, temporal=temporal), torch.stack(wanted))


@pytest.mark.parametrize(("frames", "padded"), [(1, 2), (2, 2), (5, 6)])
def test_an_odd_last_frame_is_doubled(frames: int, padded: int) -> None:
    values = torch.arange(frames, dtype=torch.float32).view(frames, 1, 1, 1)
    got = pad_frames(values, 2)
    assert got.shape[0] == padded
    assert got.flatten().tolist() == [*range(frames), *[frames - 1] * (padded - frames)]


@pytest.mark.parametrize(
    ("height", "width", "size", "corner"),
    [
        (333, 500, (256, 384), (16, 80)),
        (500, 333, (384, 256), (80, 16)),
        (1, 2000, (256, 512000), (16, 255888)),
    ],
)
def test_the_crop_is_placed_in_the_middle(
    height: int, width: int, size: tuple[int, int], corner: tuple[int, int]
) -> None:
    got, window = DEFAULT.placed(height, width)
    assert got == size
    assert (window.top, window.left, window.height, window.width) == (*corner, 224, 224)


def test_a_preprocessor_file_overrules_the_default() -> None:
    assert crop_rule({}, DEFAULT) == DEFAULT
    read = crop_rule(
        {"size": {"shortest_edge": 40}, "crop_size": {"height": 28, "width": 14}, "resample": 2}, DEFAULT
    )
    assert read == CropRule(shortest_edge=40, crop=(28, 14), filter_=Filter.BILINEAR)
    assert crop_rule({"size": 64, "crop_size": 56}, DEFAULT) == CropRule(shortest_edge=64, crop=(56, 56))


@pytest.mark.parametrize(
    ("processor", "named"),
    [
        ({"do_resize": False}, "do_resize"),
        ({"do_center_crop": False}, "do_center_crop"),
        ({"size": {"height": 3, "width": 4}}, "size"),
        ({"crop_size": "big"}, "crop_size"),
        ({"size": 100}, "crop_size"),
        ({"resample": 0}, "resample"),
    ],
)
def test_an_unknown_preprocessor_is_refused(processor: dict[str, object], named: str) -> None:
    with pytest.raises(SettingsError, match=named):
        crop_rule(processor, DEFAULT)


@pytest.mark.parametrize(
    ("width", "height", "grid"),
    [
        (1600, 8, (2, 58)),
        (26, 28, (6, 4)),
        (332, 27, (2, 24)),
        (305, 30, (2, 22)),
        (1, 1, (4, 4)),
        (150, 1, (2, 50)),
        (240, 3, (2, 36)),
    ],
)
def test_sizes_that_broke_other_systems(width: int, height: int, grid: tuple[int, int]) -> None:
    """shared/cases IMG-16 to IMG-20."""
    size = smart_size(height, width, factor=28, min_pixels=3136, max_pixels=12845056)
    assert (size[0] // 14, size[1] // 14) == grid


@pytest.mark.parametrize(("height", "width"), [(8, 2000), (2000, 8), (1, 201)])
def test_a_ratio_above_200_is_refused_by_name(height: int, width: int) -> None:
    with pytest.raises(MediaTooLarge, match=f"{max(height, width) / min(height, width):.1f}"):
        smart_size(height, width, factor=28, min_pixels=3136, max_pixels=12845056)


def test_a_pure_tone_peaks_in_its_own_bin() -> None:
    rule = MelRule(bins=80)
    filters = mel_filters(rule, CPU)
    assert filters.shape == (80, 201)
    assert bool((filters >= 0).all())
    time = torch.arange(rule.window) / rule.sample_rate
    mel = log_mel(torch.sin(2 * math.pi * 1000.0 * time)[None], rule)
    assert mel.shape == (1, 80, 3000)
    assert int(mel[0, :, 1500].argmax()) == int(filters[:, 25].argmax())


def test_each_window_has_its_own_floor() -> None:
    rule = MelRule(bins=80)
    noise = torch.from_numpy(np.random.default_rng(0).standard_normal(rule.window).astype(np.float32))
    loud, quiet = noise, noise * 1e-3
    together = log_mel(torch.stack([loud, quiet]), rule)
    torch.testing.assert_close(together[1], log_mel(quiet[None], rule)[0], atol=1e-6, rtol=0)
    silence = log_mel(torch.zeros(1, rule.window), rule)
    assert bool(torch.isfinite(silence).all())
    assert float(silence.min()) == float(silence.max()) == -1.5
