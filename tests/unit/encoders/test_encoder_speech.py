"""The speech families: counts, layouts, features of chunks, and files that they refuse."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from epd.config import EncoderConfig
from epd.contracts.errors import EmptyMedia, Internal, SettingsError
from gpu_worker.encoders.base import Encoder
from gpu_worker.encoders.registry import load_encoder
from gpu_worker.encoders.speech.packed import kept_rows, paired_rows, rows_of
from gpu_worker.encoders.speech.qwen2_5_omni_audio import wave_positions
from gpu_worker.preprocess.mel import MelRule, chunk_frames, chunked_log_mel, log_mel, stack_windows
from tests.unit.encoders import tiny_checkpoints as tiny

FAMILIES = ("whisper", "qwen2_audio", "qwen2_5_omni_audio")
PACKED = FAMILIES[1:]
CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def encoders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Encoder]:
    folder: Path = tmp_path_factory.mktemp("speech")
    return {family: tiny.tiny_encoder(family, folder) for family in FAMILIES}


@pytest.mark.parametrize(
    ("samples", "tokens", "lengths"),
    [
        (321, 1, (3,)),
        (16000, 25, (100,)),
        (16001, 25, (101,)),
        (480000, 750, (3000,)),
        (480001, 750, (3000, 1)),
        (1000000, 1562, (3000, 3000, 250)),
    ],
)
def test_qwen2_audio_counts_windows(
    encoders: dict[str, Encoder], samples: int, tokens: int, lengths: tuple[int, ...]
) -> None:
    plan = encoders["qwen2_audio"].plan(tiny.raw_audio(samples), tiny.NO_OPTIONS)
    assert (plan.tokens, plan.facts.audio_feature_lengths) == (tokens, lengths)
    assert plan.segments == tuple((frames + 1) // 2 for frames in lengths)
    assert plan.cost == sum(plan.segments)


@pytest.mark.parametrize(
    ("samples", "tokens", "frames", "segments"),
    [
        (321, 1, 3, (2,)),
        (32000, 50, 200, (100,)),
        (32001, 50, 201, (100, 1)),
        (480001, 750, 3001, (*[100] * 15, 1)),
        (4800000 + 640, 7501, 30004, (*[100] * 150, 2)),
    ],
)
def test_omni_counts_the_whole_audio(
    encoders: dict[str, Encoder], samples: int, tokens: int, frames: int, segments: tuple[int, ...]
) -> None:
    plan = encoders["qwen2_5_omni_audio"].plan(tiny.raw_audio(samples), tiny.NO_OPTIONS)
    assert (plan.tokens, plan.facts.audio_feature_lengths) == (tokens, (frames,))
    assert (plan.segments, plan.cost) == (segments, sum(segments))


@pytest.mark.parametrize("family", PACKED)
@pytest.mark.parametrize("samples", [1, 10, 320])
def test_audio_without_a_row_is_refused(encoders: dict[str, Encoder], family: str, samples: int) -> None:
    with pytest.raises(EmptyMedia, match="the least is 321"):
        encoders[family].plan(tiny.raw_audio(samples), tiny.NO_OPTIONS)


@pytest.mark.parametrize("family", FAMILIES)
def test_another_sample_rate_is_our_fault(encoders: dict[str, Encoder], family: str) -> None:
    with pytest.raises(Internal, match="8000"):
        encoders[family].plan(tiny.raw_audio(8000, sample_rate=8000), tiny.NO_OPTIONS)


def test_rows_of_frames_are_the_convolutions() -> None:
    conv = torch.nn.Conv1d(1, 1, kernel_size=3, stride=2, padding=1)
    for frames in range(1, 20):
        assert conv(torch.zeros(1, 1, frames)).shape[2] == rows_of(frames)


def test_layouts_by_hand() -> None:
    assert kept_rows((3, 1, 2), 3).tolist() == [0, 1, 2, 3, 6, 7]
    assert paired_rows((3, 1, 2)).tolist() == [0, 1, 4, 5]
    assert paired_rows((6,)).tolist() == [0, 1, 2, 3, 4, 5]


def test_positions_are_waves() -> None:
    waves = wave_positions(3, 8)
    assert waves.shape == (3, 8)
    assert waves[0].tolist() == [0.0] * 4 + [1.0] * 4
    assert waves[2, 0] == pytest.approx(0.9092974)
    assert waves[2, 3] == pytest.approx(2e-4)


@pytest.mark.parametrize("samples", [160, 321, 31999, 32001, 70000, 159841, 160000])
def test_chunks_are_the_windows_features(samples: int) -> None:
    """Both ways to the same features: a window of 10 s, and chunks of 2 s up to the end of the audio."""
    rule = MelRule(bins=128, window=160000)
    audio = torch.randn(samples, generator=torch.Generator().manual_seed(samples)) * 0.1
    whole = log_mel(stack_windows([audio], rule, CPU), rule)[0]
    chunks = chunked_log_mel([audio], rule, 200)
    valid = chunk_frames(samples, rule, 200)
    assert chunks.shape == (len(valid), 128, 200)
    for index, frames in enumerate(valid):
        wanted = whole[:, index * 200 : index * 200 + frames]
        torch.testing.assert_close(chunks[index, :, :frames], wanted, atol=1e-5, rtol=0)
        assert not chunks[index, :, frames:].any()


def test_each_audio_has_its_own_floor() -> None:
    rule = MelRule(bins=80)
    loud = torch.randn(40000, generator=torch.Generator().manual_seed(1))
    quiet = torch.zeros(40000)
    quiet[100] = 1e-4
    both = chunked_log_mel([loud, quiet], rule, 200)
    assert torch.equal(both[2:], chunked_log_mel([quiet], rule, 200))
    assert torch.equal(both[:2], chunked_log_mel([loud], rule, 200))


def load(family: str, folder: Path) -> Encoder:
    settings = {"family": family, "path": folder, "dtype": "float32", "device": "cpu"}
    return load_encoder("e", EncoderConfig.model_validate(settings))


def load_with(family: str, folder: Path, extractor: dict[str, Any], file: str = "") -> Encoder:
    tiny.tiny_folder(family, folder)
    (folder / family / (file or "preprocessor_config.json")).write_text(json.dumps(extractor))
    return load(family, folder / family)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("feature_size", 64),
        ("dither", 0.0001),
        ("padding_value", 1.0),
        ("do_normalize", True),
        ("feature_extractor_type", "EncodecFeatureExtractor"),
    ],
)
def test_other_features_are_refused(family: str, key: str, value: object, tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=key):
        load_with(family, tmp_path, {key: value})


@pytest.mark.parametrize("family", ["whisper", "qwen2_audio"])
def test_another_window_than_the_towers_is_refused(family: str, tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="chunk_length is 20"):
        load_with(family, tmp_path, {"chunk_length": 20})
    load_with(family, tmp_path, {"chunk_length": 30})


def test_the_extractors_section_next_to_an_image_processor_counts(tmp_path: Path) -> None:
    sections = {"image_processor": {"merge_size": 2}, "feature_extractor": {"feature_size": 64}}
    with pytest.raises(SettingsError, match="feature_size is 64"):
        load_with("qwen2_5_omni_audio", tmp_path, sections, "processor_config.json")


@pytest.mark.parametrize(
    ("family", "change", "named"),
    [
        ("qwen2_audio", {"activation_function": "relu"}, "activation_function"),
        ("qwen2_audio", {"scale_embedding": True}, "scale_embedding"),
        ("qwen2_audio", {"encoder_attention_heads": 5}, "5 heads"),
        ("qwen2_5_omni_audio", {"n_window": 0}, "n_window"),
        ("qwen2_5_omni_audio", {"n_window": 1501}, "n_window"),
        ("qwen2_5_omni_audio", {"output_dim": None}, "output_dim"),
    ],
)
def test_what_the_tower_cannot_do_is_refused(
    family: str, change: dict[str, Any], named: str, tmp_path: Path
) -> None:
    folder = tiny.tiny_folder(family, tmp_path)
    config = json.loads((folder / "config.json").read_text())
    config.get("thinker_config", config)["audio_config"] |= change
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(SettingsError, match=named):
        load(family, folder)


@pytest.mark.parametrize("family", PACKED)
def test_a_checkpoint_of_text_alone_is_refused(family: str, tmp_path: Path) -> None:
    folder = tiny.write_checkpoint(tmp_path, {"text_config": {}}, tiny.TINY[family][1]())
    with pytest.raises(SettingsError, match="no audio_config"):
        load(family, folder)


def test_the_language_model_next_to_the_tower_is_left_alone(tmp_path: Path) -> None:
    config, state = tiny.TINY["qwen2_audio"]
    others = {"language_model.lm_head.weight": torch.zeros(3), "audio_tower_of_another.x": torch.zeros(3)}
    folder = tiny.write_checkpoint(tmp_path / "a", config, state() | others)
    assert load("qwen2_audio", folder).card.parameters == sum(t.numel() for t in state().values())
    extra = {"multi_modal_projector.extra": torch.zeros(3)}
    folder = tiny.write_checkpoint(tmp_path / "b", config, state() | extra)
    with pytest.raises(SettingsError, match=r"unexpected multi_modal_projector\.extra"):
        load("qwen2_audio", folder)


def test_other_prefixes_are_found(tmp_path: Path) -> None:
    config, state = tiny.TINY["qwen2_audio"]
    renamed = {f"model.{name}": tensor for name, tensor in state().items()}
    assert load("qwen2_audio", tiny.write_checkpoint(tmp_path / "a", config, renamed))
    config, state = tiny.TINY["qwen2_5_omni_audio"]
    thinker = {name.removeprefix("thinker."): tensor for name, tensor in state().items()}
    thinker["audio_tower.audio_bos_eos_token.weight"] = torch.zeros(2, 24)
    folder = tiny.write_checkpoint(tmp_path / "b", config["thinker_config"], thinker)
    assert load("qwen2_5_omni_audio", folder)
