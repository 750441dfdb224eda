"""What each family plans: rows, cost and Decode facts from sizes alone, and refusals by name."""

from __future__ import annotations

from pathlib import Path

import pytest

from epd.contracts.errors import Internal, InvalidRequest, MediaTooLarge, UnsupportedMedia
from epd.contracts.media import ItemOptions, Modality
from gpu_worker.encoders.base import Encoder
from gpu_worker.encoders.registry import FAMILIES
from tests.unit.encoders import tiny_checkpoints as tiny


@pytest.fixture(scope="module")
def encoders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Encoder]:
    folder: Path = tmp_path_factory.mktemp("plan")
    return {family: tiny.tiny_encoder(family, folder) for family in FAMILIES}


@pytest.mark.parametrize(
    ("samples", "windows", "last"),
    [
        (1, 1, 1),
        (160, 1, 1),
        (161, 1, 2),
        (16000, 1, 100),
        (480000, 1, 3000),
        (480001, 2, 1),
        (1000000, 3, 250),
    ],
)
def test_whisper_counts_windows(encoders: dict[str, Encoder], samples: int, windows: int, last: int) -> None:
    plan = encoders["whisper"].plan(tiny.raw_audio(samples), tiny.NO_OPTIONS)
    assert plan.tokens == plan.cost == 1500 * windows
    assert plan.facts.audio_feature_lengths == (*[3000] * (windows - 1), last)
    assert plan.facts.grid_thw is None


def test_whisper_wants_its_own_sample_rate(encoders: dict[str, Encoder]) -> None:
    with pytest.raises(Internal, match="44100"):
        encoders["whisper"].plan(tiny.raw_audio(1000, sample_rate=44100), tiny.NO_OPTIONS)


@pytest.mark.parametrize("size", [(1, 1), (333, 500), (8, 2000), (5000, 4000)])
def test_dinov2_gives_257_rows_a_frame(encoders: dict[str, Encoder], size: tuple[int, int]) -> None:
    image = encoders["dinov2"].plan(tiny.raw_image(*size), tiny.NO_OPTIONS)
    assert (image.tokens, image.facts.grid_thw, image.facts.prefix_tokens) == (257, (1, 16, 16), 1)
    video = encoders["dinov2"].plan(tiny.raw_frames(5, *size, fps=4.0), tiny.NO_OPTIONS)
    assert (video.tokens, video.facts.grid_thw) == (5 * 257, (5, 16, 16))
    assert video.facts.second_per_grid_ts == 0.25
    assert video.facts.video_timestamps == (0.0, 0.25, 0.5, 0.75, 1.0)
    assert image.bucket == video.bucket


def test_qwen_counts_merge_cells(encoders: dict[str, Encoder]) -> None:
    plan = encoders["qwen2_5_vl"].plan(tiny.raw_image(333, 500), tiny.NO_OPTIONS)
    assert plan.facts.grid_thw == (1, 24, 36)
    assert (plan.tokens, plan.cost, plan.target, plan.facts.merge_size) == (216, 864, (336, 504), 2)
    assert sum(plan.segments) == plan.cost


@pytest.mark.parametrize(("frames", "pairs"), [(1, 1), (4, 2), (5, 3), (8, 4)])
def test_qwen_takes_frames_in_pairs(encoders: dict[str, Encoder], frames: int, pairs: int) -> None:
    plan = encoders["qwen2_5_vl"].plan(tiny.raw_frames(frames, 360, 640, fps=2.0), tiny.NO_OPTIONS)
    assert plan.facts.grid_thw == (pairs, 26, 46)
    assert plan.facts.second_per_grid_ts == 1.0
    assert plan.facts.video_timestamps is not None
    assert len(plan.facts.video_timestamps) == frames
    assert plan.tokens == pairs * 13 * 23


def test_qwen_frames_share_a_budget(encoders: dict[str, Encoder]) -> None:
    """qwen-vl-utils: a frame of a pair may have 115200 * 28^2 * 2 / frames pixels."""
    short = encoders["qwen2_5_vl"].plan(tiny.raw_frames(4, 1080, 1920), tiny.NO_OPTIONS)
    long = encoders["qwen2_5_vl"].plan(tiny.raw_frames(768, 1080, 1920), tiny.NO_OPTIONS)
    for plan, bound in ((short, 768 * 28 * 28), (long, 115200 * 28 * 28 * 2 // 768)):
        assert plan.target is not None
        assert bound * 0.8 < plan.target[0] * plan.target[1] <= bound
    assert long.tokens <= 115200


def test_qwen_obeys_pixel_options(encoders: dict[str, Encoder]) -> None:
    encoder = encoders["qwen2_5_vl"]
    small = encoder.plan(tiny.raw_image(1080, 1920), ItemOptions(max_pixels=100352))
    assert small.target is not None
    assert small.target[0] * small.target[1] <= 100352
    large = encoder.plan(tiny.raw_image(28, 28), ItemOptions(min_pixels=100352))
    assert large.target is not None
    assert large.target[0] * large.target[1] >= 100352


@pytest.mark.parametrize(
    "options",
    [
        ItemOptions(min_pixels=5000, max_pixels=4000),
        ItemOptions(max_pixels=3000),
        ItemOptions(max_pixels=12845057),
        ItemOptions(min_pixels=12845057),
    ],
)
def test_qwen_refuses_impossible_bounds(encoders: dict[str, Encoder], options: ItemOptions) -> None:
    with pytest.raises(InvalidRequest, match="pixels"):
        encoders["qwen2_5_vl"].plan(tiny.raw_image(100, 100), options)


def test_qwen_refuses_what_outgrows_the_context(encoders: dict[str, Encoder]) -> None:
    with pytest.raises(MediaTooLarge, match="rows"):
        encoders["qwen2_5_vl"].plan(tiny.raw_frames(4096, 1080, 1920), tiny.NO_OPTIONS)
    with pytest.raises(MediaTooLarge, match=r"250\.0"):
        encoders["qwen2_5_vl"].plan(tiny.raw_image(8, 2000), tiny.NO_OPTIONS)


def test_a_media_type_that_the_card_lacks_is_refused(encoders: dict[str, Encoder]) -> None:
    raws = {
        Modality.IMAGE: tiny.raw_image(30, 30),
        Modality.VIDEO: tiny.raw_frames(4, 300, 300),
        Modality.AUDIO: tiny.raw_audio(1600),
    }
    for encoder in encoders.values():
        for modality, raw in raws.items():
            if modality in encoder.card.modalities:
                assert encoder.plan(raw, tiny.NO_OPTIONS).tokens > 0
            else:
                with pytest.raises(UnsupportedMedia, match=encoder.card.name):
                    encoder.plan(raw, tiny.NO_OPTIONS)


def test_the_rules_of_the_card_are_complete(encoders: dict[str, Encoder]) -> None:
    for encoder in encoders.values():
        card = encoder.card
        for modality, rules in (
            (Modality.IMAGE, card.image),
            (Modality.VIDEO, card.video),
            (Modality.AUDIO, card.audio),
        ):
            assert (modality in card.modalities) == (rules is not None)
        assert set(card.options) <= set(ItemOptions.model_fields)
