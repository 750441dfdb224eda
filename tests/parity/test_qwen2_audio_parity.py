"""Family qwen2_audio against transformers: what the language model is given in the place of the sound."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from transformers import (
    Qwen2AudioConfig,
    Qwen2AudioForConditionalGeneration,
    Qwen2AudioProcessor,
    WhisperFeatureExtractor,
)

from gpu_worker.encoders.base import Encoder
from tests.parity.speech import (
    ODD_LENGTHS,
    WINDOW,
    Encode,
    agree_on_counts,
    features,
    item,
    noise,
    real_speech,
)
from tests.unit.tiny_checkpoints import NO_OPTIONS, raw_audio

AUDIO_TOKEN = 7
TEXT = {
    "hidden_size": 40,
    "intermediate_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "vocab_size": 50,
}
AUDIO = {"d_model": 48, "encoder_layers": 3, "encoder_attention_heads": 4, "encoder_ffn_dim": 96}


class Reference:
    """The published feature extractor and a small random model."""

    def __init__(self, folder: Path) -> None:
        torch.manual_seed(5)
        config = Qwen2AudioConfig(audio_config=AUDIO, text_config=TEXT, audio_token_index=AUDIO_TOKEN)
        self.model = Qwen2AudioForConditionalGeneration(config).eval()
        # The initialiser's 0.02 leaves attention nearly flat; wider weights make its masks matter.
        with torch.no_grad():
            for name, value in self.model.model.audio_tower.named_parameters():
                if name.endswith("weight") and value.dim() == 2:
                    value.mul_(6.0)
        self.extractor = WhisperFeatureExtractor(feature_size=128)
        self.model.save_pretrained(folder)
        self.extractor.save_pretrained(folder)

    def inputs(self, sound: np.ndarray) -> dict[str, Tensor]:
        """As the published processor asks for them: padded to 30 s, with a mask."""
        made = self.extractor(sound, sampling_rate=16000, return_attention_mask=True, return_tensors="pt")
        return {
            "input_features": made["input_features"],
            "feature_attention_mask": made["attention_mask"],
        }

    def rows(self, sound: np.ndarray, tokens: int) -> Tensor:
        """What the whole model writes over ``tokens`` placeholders; it refuses any other count."""
        seen: list[Tensor] = []
        hook = self.model.model.language_model.register_forward_pre_hook(
            lambda _module, _args, given: seen.append(given["inputs_embeds"]), with_kwargs=True
        )
        ids = torch.tensor([[1, *[AUDIO_TOKEN] * tokens, 2]])
        try:
            with torch.inference_mode():
                self.model(input_ids=ids, attention_mask=torch.ones_like(ids), **self.inputs(sound))
        finally:
            hook.remove()
        return seen[0][0, 1:-1]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("qwen2_audio")


@pytest.fixture(scope="module")
def reference(folder: Path) -> Reference:
    return Reference(folder)


@pytest.fixture(scope="module")
def ours(reference: Reference, folder: Path, load: Callable[..., Encoder]) -> Encoder:
    return load("qwen2_audio", folder)


SOUNDS: dict[str, Callable[[], np.ndarray]] = {
    "least": lambda: real_speech(321),
    "short": lambda: real_speech(16001),
    "odd rows": lambda: real_speech(160 * 101),
    "speech": lambda: real_speech(200003),
    "nearly whole": lambda: real_speech(WINDOW - 37),
    "whole window": lambda: real_speech(WINDOW),
    "silence": lambda: np.zeros(20000, np.float32),
    "noise": lambda: noise(100001),
}


@pytest.mark.parametrize("name", sorted(SOUNDS))
def test_rows_are_what_the_language_model_is_given(
    ours: Encoder, reference: Reference, encode: Encode, relative: Any, name: str
) -> None:
    sound = SOUNDS[name]()
    got = encode(ours, [item(sound)])[0]
    assert got.shape[1] == ours.card.hidden == TEXT["hidden_size"]
    assert relative(got, reference.rows(sound, len(got))) <= 1e-4


def test_a_long_sound_is_its_windows(
    ours: Encoder, reference: Reference, encode: Encode, relative: Any
) -> None:
    """The published processor drops what is behind 30 s."""
    sound = real_speech(WINDOW + 77777)
    plan = ours.plan(raw_audio(len(sound)), NO_OPTIONS)
    assert plan.facts.audio_feature_lengths == (3000, 487)
    parts = [sound[:WINDOW], sound[WINDOW:]]
    counts = [ours.plan(raw_audio(len(part)), NO_OPTIONS).tokens for part in parts]
    assert plan.tokens == sum(counts)
    wanted = [reference.rows(part, tokens) for part, tokens in zip(parts, counts, strict=True)]
    assert relative(encode(ours, [item(sound)])[0], torch.cat(wanted)) <= 1e-4


def test_counts_are_the_published_processors(ours: Encoder, reference: Reference) -> None:
    """The processor itself where lengths step, and its mask and formula for 500 random lengths."""
    stand_in = SimpleNamespace(
        feature_extractor=reference.extractor, replace_audio_token=lambda *_args, **_more: ""
    )
    reference.extractor.fetch_audio = lambda sound: sound
    for samples in (*ODD_LENGTHS, 320, 321, 480, 481, WINDOW):
        made, _ = Qwen2AudioProcessor._process_audio(
            stand_in, [np.zeros(samples, np.float32)], sampling_rate=16000
        )
        agree_on_counts(ours, samples, int(made["feature_attention_mask"].sum()), made["num_audio_tokens"][0])
    lengths = np.random.default_rng(11).integers(1, WINDOW + 1, 500)
    frames = torch.tensor([len(np.ones(samples)[::160]) for samples in lengths])
    tokens = reference.model.model.audio_tower._get_feat_extract_output_lengths(frames)[1]
    for case in zip(lengths.tolist(), frames.tolist(), tokens.tolist(), strict=True):
        agree_on_counts(ours, *case)


@pytest.mark.parametrize("samples", [n for n in ODD_LENGTHS if n > 320])
def test_features_are_the_extractors(ours: Encoder, reference: Reference, samples: int) -> None:
    sound = real_speech(samples)
    wanted = reference.inputs(sound)["input_features"]
    assert float((features(ours, [sound]) - wanted).abs().max()) <= 1e-4


def test_bfloat16_points_the_same_way(
    folder: Path, ours: Encoder, load: Callable[..., Encoder], encode: Encode, alike: Any
) -> None:
    half = load("qwen2_audio", folder, "bfloat16")
    for name in ("short", "speech", "whole window"):
        one = item(SOUNDS[name]())
        assert alike(encode(half, [one])[0], encode(ours, [one])[0]) >= 0.999


def test_packed_equals_single(ours: Encoder, encode: Encode) -> None:
    items = [item(sound()) for sound in SOUNDS.values()]
    for packed, one in zip(encode(ours, items), items, strict=True):
        single = encode(ours, [one])[0]
        torch.testing.assert_close(packed, single, atol=1e-5 * float(single.abs().max()), rtol=0)
