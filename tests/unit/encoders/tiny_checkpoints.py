"""Small random checkpoints in the published layout, one for each family, and raw media without bytes."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from epd.config import EncoderConfig
from epd.contracts.media import BlobRef, ItemOptions, RawAudio, RawFrames, RawImage
from gpu_worker.encoders.base import Encoder
from gpu_worker.encoders.image.dinov2 import Dinov2Shape, Dinov2Tower
from gpu_worker.encoders.qwen.qwen2_5_vl import Qwen25VisionShape, Qwen25VisionTower
from gpu_worker.encoders.registry import load_encoder
from gpu_worker.encoders.speech.qwen2_5_omni_audio import OmniAudioTower
from gpu_worker.encoders.speech.qwen2_audio import Qwen2AudioTower
from gpu_worker.encoders.speech.tower import WhisperShape, WhisperTower
from tests.unit.encoders.tiny_tensors import random_state
from tests.unit.encoders.tiny_vision import TINY_VISION

BLOB = BlobRef(name="blob", nbytes=1)
NO_OPTIONS = ItemOptions()

WHISPER = {
    "d_model": 32,
    "encoder_layers": 2,
    "encoder_attention_heads": 4,
    "encoder_ffn_dim": 48,
    "num_mel_bins": 80,
    "max_source_positions": 1500,
}
QWEN2_AUDIO = {"audio_config": WHISPER | {"num_mel_bins": 128}, "text_config": {"hidden_size": 24}}
OMNI_AUDIO = {
    "thinker_config": {"audio_config": WHISPER | {"num_mel_bins": 128, "n_window": 100, "output_dim": 24}}
}
DINOV2 = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "patch_size": 14,
    "image_size": 518,
    "mlp_ratio": 2,
}
QWEN = {
    "vision_config": {
        "depth": 3,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_heads": 4,
        "out_hidden_size": 24,
        "patch_size": 14,
        "temporal_patch_size": 2,
        "spatial_merge_size": 2,
        "window_size": 112,
        "fullatt_block_indexes": [1],
    }
}


def whisper_state() -> dict[str, Tensor]:
    shape = WhisperShape(width=32, layers=2, heads=4, hidden=48, mel_bins=80, positions=1500)
    return random_state(WhisperTower(shape), "model.encoder.")


def qwen2_audio_state() -> dict[str, Tensor]:
    shape = WhisperShape(width=32, layers=2, heads=4, hidden=48, mel_bins=128, positions=1500)
    return random_state(Qwen2AudioTower(shape, 24), "")


def omni_audio_state() -> dict[str, Tensor]:
    shape = WhisperShape(width=32, layers=2, heads=4, hidden=48, mel_bins=128, positions=100)
    return random_state(OmniAudioTower(shape, 24), "thinker.audio_tower.")


def dinov2_state() -> dict[str, Tensor]:
    shape = Dinov2Shape(
        width=32,
        layers=2,
        heads=4,
        hidden=64,
        patch=14,
        trained_grid=37,
        epsilon=1e-6,
        gated=False,
        qkv_bias=True,
    )
    return random_state(Dinov2Tower(shape), "")


def qwen_state() -> dict[str, Tensor]:
    shape = Qwen25VisionShape(
        width=32,
        layers=3,
        heads=4,
        hidden=48,
        out_width=24,
        patch=14,
        temporal=2,
        merge=2,
        window=4,
        full=frozenset({1}),
    )
    return random_state(Qwen25VisionTower(shape), "visual.")


def write_checkpoint(folder: Path, config: dict[str, Any], state: dict[str, Tensor]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    save_file(state, folder / "model.safetensors")
    return folder


#: Family to its configuration and a maker of its tensors.
TINY: dict[str, tuple[dict[str, Any], Callable[[], dict[str, Tensor]]]] = {
    "whisper": (WHISPER, whisper_state),
    "qwen2_audio": (QWEN2_AUDIO, qwen2_audio_state),
    "qwen2_5_omni_audio": (OMNI_AUDIO, omni_audio_state),
    "dinov2": (DINOV2, dinov2_state),
    "qwen2_5_vl": (QWEN, qwen_state),
} | TINY_VISION


def tiny_folder(family: str, folder: Path) -> Path:
    config, state = TINY[family]
    return write_checkpoint(folder / family, config, state())


def encoder_at(family: str, path: Path, dtype: str = "float32") -> Encoder:
    return load_encoder(
        f"tiny-{family}",
        EncoderConfig.model_validate({"family": family, "path": path, "dtype": dtype, "device": "cpu"}),
    )


def tiny_encoder(family: str, folder: Path, dtype: str = "float32") -> Encoder:
    return encoder_at(family, tiny_folder(family, folder), dtype)


def raw_image(height: int, width: int) -> RawImage:
    return RawImage(blob=BLOB, height=height, width=width, original_size=(width, height))


def raw_frames(frames: int, height: int, width: int, fps: float = 2.0) -> RawFrames:
    return RawFrames(
        blob=BLOB,
        frames=frames,
        height=height,
        width=width,
        original_size=(width, height),
        timestamps=tuple(i / fps for i in range(frames)),
        duration=frames / fps,
        sampled_fps=fps,
        source_frames=frames,
    )


def raw_audio(samples: int, sample_rate: int = 16000) -> RawAudio:
    return RawAudio(blob=BLOB, samples=samples, sample_rate=sample_rate)


def random_image(height: int, width: int, *, frames: int | None = None, seed: int = 0) -> Tensor:
    shape = (height, width, 3) if frames is None else (frames, height, width, 3)
    return torch.randint(0, 256, shape, dtype=torch.uint8, generator=torch.Generator().manual_seed(seed))
