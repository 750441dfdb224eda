"""Audio clips for the parity tests: real speech at odd lengths, silence, noise, and files of known faults."""

from __future__ import annotations

import numpy as np
import pytest
import soundfile
import torch
from torch import Tensor

from epd.contracts.errors import EmptyMedia
from epd.contracts.media import RawAudio
from gpu_worker.encoders.base import Encoder
from tests.parity.media import EXAMPLES
from tests.parity.published import Count
from tests.unit.encoders.tiny_checkpoints import NO_OPTIONS, raw_audio

SPEECH = EXAMPLES / "speech.ogg"
WINDOW = 480000

#: A hop is 160 samples, a chunk of Qwen2.5-Omni 32000, a window of Whisper 480000.
ODD_LENGTHS = (1, 10, 159, 160, 161, 201, 799, 800, 801, 16001, 31999, 32000, 32001, 47771, 100003, 479841)


def real_speech(samples: int) -> np.ndarray:
    """float32 [samples] at 16 kHz of the spoken example, begun again where it ends."""
    recorded, rate = soundfile.read(SPEECH, dtype="float32", always_2d=True)
    mono = recorded.mean(axis=1)
    wanted = np.arange(0, len(mono) / rate, 1 / 16000)
    speech = np.interp(wanted, np.arange(len(mono)) / rate, mono).astype(np.float32)
    return np.resize(speech, samples)


def noise(samples: int) -> np.ndarray:
    return (np.random.default_rng(3).standard_normal(samples) * 0.3).astype(np.float32)


def item(audio: np.ndarray) -> tuple[RawAudio, Tensor]:
    return raw_audio(len(audio)), torch.from_numpy(audio)


def features(encoder: Encoder, audios: list[np.ndarray]) -> Tensor:
    """The encoder's own features of these audio clips in one batch."""
    plans = [encoder.plan(raw_audio(len(audio)), NO_OPTIONS) for audio in audios]
    return encoder.preprocess([torch.from_numpy(audio) for audio in audios], plans).tensors["mel"]


def agree_on_count(encoder: Encoder, count: Count) -> None:
    """Our plan of one input of the language model, against the published frames and placeholders."""
    if count.tokens == 0:
        with pytest.raises(EmptyMedia, match="the least is 321"):
            encoder.plan(count.raw, NO_OPTIONS)
        return
    plan = encoder.plan(count.raw, NO_OPTIONS)
    assert (plan.tokens, plan.facts.audio_feature_lengths) == (count.tokens, count.lengths)
    assert sum(plan.segments) == plan.cost
