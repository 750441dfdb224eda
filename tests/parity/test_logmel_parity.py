"""Log-mel of the speech families against WhisperFeatureExtractor: speech at odd lengths, known faults."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor
from transformers import WhisperFeatureExtractor

from epd.contracts.embedding import AudioRules
from epd.contracts.errors import EmptyMedia
from epd.contracts.media import Modality, RawAudio
from gpu_worker.encoders.base import Encoder
from gpu_worker.preprocess.mel import MelRule, chunked_log_mel, log_mel, stack_windows
from tests.parity.media import ROOT
from tests.parity.published import encode
from tests.parity.speech import ODD_LENGTHS, WINDOW, features, item, real_speech
from tests.unit.encoders.tiny_checkpoints import NO_OPTIONS, raw_audio, tiny_encoder
from workers.decode.decode import decode
from workers.limits import DecodeLimits

MEDIA = ROOT / "tests" / "hostile" / "media"
CPU = torch.device("cpu")
Audio = NDArray[np.float32]

#: Lengths that end anywhere in a hop, always the same ones.
RANDOM_LENGTHS = tuple(int(n) for n in np.random.default_rng(21).integers(1, WINDOW, 24))


def ours(audio: Audio, bins: int) -> Tensor:
    rule = MelRule(bins=bins)
    return log_mel(stack_windows([torch.from_numpy(audio)], rule, CPU), rule)


def published(audio: Audio, bins: int) -> Tensor:
    """The extractor's features of each window of 30 s: float32 [windows, bins, 3000]."""
    cuts = [audio[start : start + WINDOW] for start in range(0, len(audio), WINDOW)]
    return WhisperFeatureExtractor(feature_size=bins)(
        cuts, sampling_rate=16000, return_tensors="pt"
    ).input_features


@pytest.mark.parametrize("bins", [80, 128])
@pytest.mark.parametrize("samples", [*ODD_LENGTHS, *RANDOM_LENGTHS, WINDOW, WINDOW + 1, 2 * WINDOW + 77777])
def test_windows_of_speech(samples: int, bins: int) -> None:
    audio = real_speech(samples)
    got, wanted = ours(audio, bins), published(audio, bins)
    assert got.shape == wanted.shape == (-(-samples // WINDOW), bins, 3000)
    assert float((got - wanted).abs().max()) <= 1e-4


@pytest.mark.parametrize("bins", [80, 128])
def test_the_extractor_without_torch_agrees_too(bins: int) -> None:
    """Its numpy half computes in float64."""
    audio = np.zeros((1, WINDOW), np.float32)
    audio[0, :200003] = real_speech(200003)
    wanted = WhisperFeatureExtractor(feature_size=bins)._np_extract_fbank_features(audio, "cpu")
    assert float((ours(audio[0], bins) - torch.from_numpy(wanted)).abs().max()) <= 1e-4


def test_chunks_of_speech_in_one_batch() -> None:
    """One floor an audio clip and no seam between chunks, up to the extractor's whole 300 s."""
    extractor = WhisperFeatureExtractor(feature_size=128, chunk_length=300)
    audios = [real_speech(samples) for samples in (*RANDOM_LENGTHS[:4], 4_799_841, 4_800_000)]
    chunks = chunked_log_mel(
        [torch.from_numpy(audio) for audio in audios], MelRule(bins=128, window=4_800_000), 200
    )
    for audio in audios:
        frames = -(-len(audio) // 160)
        wanted = extractor(audio, sampling_rate=16000, return_tensors="pt").input_features[0, :, :frames]
        got, chunks = chunks[: -(-frames // 200)], chunks[-(-frames // 200) :]
        assert float((got.transpose(0, 1).flatten(1)[:, :frames] - wanted).abs().max()) <= 1e-4
    assert len(chunks) == 0


@pytest.fixture(scope="module")
def encoders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Encoder]:
    folder: Path = tmp_path_factory.mktemp("families")
    return {name: tiny_encoder(name, folder) for name in ("whisper", "qwen2_audio", "qwen2_5_omni_audio")}


@pytest.fixture
def decoded(tmp_path: Path) -> Callable[[str], Audio]:
    """A case file as the decode worker hands it on."""

    def run(name: str) -> Audio:
        raw = decode(
            MEDIA / name,
            modality=Modality.AUDIO,
            options=NO_OPTIONS,
            rules=AudioRules(sample_rate=16000),
            limits=DecodeLimits(),
            out=tmp_path / "blob",
        )
        assert isinstance(raw, RawAudio)
        return np.fromfile(tmp_path / "blob", np.float32).reshape(raw.samples)

    return run


def test_no_samples_reach_no_encoder(decoded: Callable[[str], Audio]) -> None:
    """AUD-10: refused where it is decoded."""
    with pytest.raises(EmptyMedia):
        decoded("AUD-10.wav")


def test_ten_samples(decoded: Callable[[str], Audio], encoders: dict[str, Encoder]) -> None:
    """AUD-11: Whisper takes them padded, with one valid frame; the others say what they need at the least."""
    audio = decoded("AUD-11.wav")
    assert len(audio) == 10
    assert encoders["whisper"].plan(raw_audio(10), NO_OPTIONS).facts.audio_feature_lengths == (1,)
    got = features(encoders["whisper"], [audio])
    assert got.shape == (1, 80, 3000)
    assert float((got - published(audio, 80)).abs().max()) <= 1e-4
    for family in ("qwen2_audio", "qwen2_5_omni_audio"):
        with pytest.raises(EmptyMedia, match="10 samples"):
            encoders[family].plan(raw_audio(10), NO_OPTIONS)


@pytest.mark.parametrize(
    ("family", "tokens", "lengths"),
    [
        ("whisper", 3000, (3000, 100)),
        ("qwen2_audio", 775, (3000, 100)),
        ("qwen2_5_omni_audio", 775, (3100,)),
    ],
)
def test_nothing_behind_thirty_seconds_is_lost(
    decoded: Callable[[str], Audio],
    encoders: dict[str, Encoder],
    family: str,
    tokens: int,
    lengths: tuple[int, ...],
) -> None:
    """AUD-12: 31 s; a beep in the last second changes the rows of that second, and no other window."""
    audio = decoded("AUD-12.ogg")
    plan = encoders[family].plan(raw_audio(len(audio)), NO_OPTIONS)
    assert (plan.tokens, plan.facts.audio_feature_lengths) == (tokens, lengths)
    hushed = audio.copy()
    hushed[WINDOW:] = 0
    rows, without = encode(encoders[family], [item(audio), item(hushed)])
    first = 1500 if family == "whisper" else 750
    assert not torch.allclose(rows[first:], without[first:], atol=1e-2)
    if len(lengths) > 1:  # with one floor for the whole audio, the loudest part moves all of it a little
        assert torch.allclose(rows[:first], without[:first], atol=1e-5)


def unpadded_frames(audio: Audio) -> int:
    """Frames of the extractor's features, and of its mask, when padding is off."""
    bare = WhisperFeatureExtractor(feature_size=128)(
        audio, sampling_rate=16000, return_attention_mask=True, return_tensors="pt", padding="do_not_pad"
    )
    assert int(bare.attention_mask.sum()) == bare.input_features.shape[2]
    return int(bare.input_features.shape[2])


@pytest.mark.parametrize(("name", "samples"), [("AUD-13a", 799), ("AUD-13b", 800), ("AUD-13c", 801)])
def test_valid_frames_are_those_that_the_engines_count(
    decoded: Callable[[str], Audio], encoders: dict[str, Encoder], name: str, samples: int
) -> None:
    """AUD-13: every reported frame is in the features, and the count is the padded extractor's mask.

    The report is of a mask that counts a frame more than unpadded features hold: those are rounded down.
    Features here are always padded, so a begun hop has its frame, and there is audio in it; engines count
    rows from this very mask.
    """
    audio = decoded(f"{name}.wav")
    assert len(audio) == samples
    made = WhisperFeatureExtractor(feature_size=128)(
        audio, sampling_rate=16000, return_attention_mask=True, return_tensors="pt"
    )
    frames = int(made.attention_mask.sum())
    assert (frames, unpadded_frames(audio)) == (-(-samples // 160), samples // 160)
    last = made.input_features[0, :, frames - 1]
    assert float(last.max()) > float(made.input_features.min()) + 0.1
    for family, encoder in encoders.items():
        assert encoder.plan(raw_audio(samples), NO_OPTIONS).facts.audio_feature_lengths == (frames,)
        got = features(encoder, [audio])[0, :, :frames]
        wanted = published(audio, 80 if family == "whisper" else 128)[0, :, :frames]
        assert float((got - wanted).abs().max()) <= 1e-4
