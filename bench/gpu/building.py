"""Encoders of real sizes with random weights, made on the device without a file or a copy.

They are the worker's own encoder classes around its own towers. Only the reading of a checkpoint is left out.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import torch
from torch import nn

from gpu_worker.encoders.attention import tanh_gelu
from gpu_worker.encoders.checkpoint import Checkpoint, LoadedWeights
from gpu_worker.encoders.image import dinov2
from gpu_worker.encoders.image.dinov2 import Dinov2Shape, Dinov2Tower
from gpu_worker.encoders.image.encoder import VIDEO_RULES, ImageEncoder, ImageRows, image_card
from gpu_worker.encoders.loading import LoadRequest
from gpu_worker.encoders.qwen import qwen2_5_vl, qwen3_vl
from gpu_worker.encoders.qwen.config import image_rules, qwen_card
from gpu_worker.encoders.qwen.encoder import QwenEncoder
from gpu_worker.encoders.qwen.parts import VisionSizes
from gpu_worker.encoders.qwen.qwen2_5_vl import Qwen25VisionShape, Qwen25VisionTower
from gpu_worker.encoders.qwen.qwen3_vl import Qwen3VisionShape, Qwen3VisionTower
from gpu_worker.encoders.qwen.sizing import FrameShareRule, PixelBounds, VolumeRule
from gpu_worker.encoders.speech import whisper
from gpu_worker.encoders.speech.tower import WhisperShape, WhisperTower, speech_card
from gpu_worker.preprocess.fit import CropRule
from gpu_worker.preprocess.mel import MelRule
from gpu_worker.preprocess.tensors import CLIP_SCALE, HALF_SCALE, IMAGENET_SCALE

#: Standard deviation of the weights: activations stay finite through all layers.
_SCALE = 0.02
_NO_DIGEST = "0" * 64


@dataclass(frozen=True, slots=True)
class Place:
    """Device and dtype of an encoder. On ``meta`` it has shapes but no values."""

    device: torch.device
    dtype: torch.dtype


def random_whisper(name: str, shape: WhisperShape, place: Place) -> whisper.WhisperEncoder:
    """Windows as long as the tower's positions: two feature frames of 10 ms for each row."""
    with torch.device("meta"):
        tower = WhisperTower(shape)
    rule = MelRule(bins=shape.mel_bins, window=shape.positions * 2 * 160)
    card = speech_card(
        _request(name, place),
        _filled(tower, place),
        rule,
        family="whisper",
        revision=whisper.PREPROCESS_REVISION,
        hidden=shape.width,
    )
    return whisper.WhisperEncoder(card, tower, rule, shape.positions)


def random_dinov2(name: str, shape: Dinov2Shape, place: Place) -> ImageEncoder:
    """Images of 224 pixels a side, cropped from a shorter side of 256."""
    with torch.device("meta"):
        tower = Dinov2Tower(shape)
    weights, side = _filled(tower, place), 224 // shape.patch
    card = image_card(
        _request(name, place),
        weights,
        family="dinov2",
        revision=dinov2.PREPROCESS_REVISION,
        width=shape.width,
    )
    return ImageEncoder(
        card,
        partial(tower, positions=tower.embeddings.positions_for((side, side))),
        rows=ImageRows(grid=(side, side), prefix=1),
        rule=CropRule(shortest_edge=256, crop=(224, 224)),
        scale=IMAGENET_SCALE,
    )


def random_qwen2_5_vl(name: str, shape: Qwen25VisionShape, place: Place) -> QwenEncoder:
    """With the published bounds of an image."""
    with torch.device("meta"):
        tower = Qwen25VisionTower(shape)
    bounds, factor = _bounds(shape, least=4), shape.patch * shape.merge
    rule = FrameShareRule(image=bounds, frame=bounds, factor=factor, temporal=shape.temporal)
    card = qwen_card(
        _request(name, place),
        _filled(tower, place),
        family="qwen2_5_vl",
        revision=qwen2_5_vl.PREPROCESS_REVISION,
        hidden=shape.out_width,
        image=image_rules(bounds),
        video=VIDEO_RULES,
    )
    return QwenEncoder(card, tower, rule=rule, scale=CLIP_SCALE)


def random_qwen3_vl(name: str, shape: Qwen3VisionShape, place: Place) -> QwenEncoder:
    """With the published bounds of an image."""
    with torch.device("meta"):
        tower = Qwen3VisionTower(shape, tanh_gelu)
    bounds, factor = _bounds(shape, least=64), shape.patch * shape.merge
    rule = VolumeRule(image=bounds, volume=bounds, factor=factor, temporal=shape.temporal)
    card = qwen_card(
        _request(name, place),
        _filled(tower, place),
        family="qwen3_vl",
        revision=qwen3_vl.PREPROCESS_REVISION,
        hidden=shape.row_width,
        image=image_rules(bounds),
        video=VIDEO_RULES,
    )
    return QwenEncoder(card, tower, rule=rule, scale=HALF_SCALE)


def _bounds(sizes: VisionSizes, *, least: int) -> PixelBounds:
    """Pixels of ``least`` to 16384 merge cells."""
    cell = (sizes.patch * sizes.merge) ** 2
    return PixelBounds(least=least * cell, most=16384 * cell)


def _request(name: str, place: Place) -> LoadRequest:
    """The request that a card is made from. Its checkpoint does not exist."""
    return LoadRequest(
        name=name, checkpoint=Checkpoint(Path("random")), device=place.device, dtype=place.dtype
    )


@torch.no_grad()
def _filled(tower: nn.Module, place: Place) -> LoadedWeights:
    """Give memory and random values to a tower built on ``meta``. Weights of norms are about one."""
    tower.to(place.dtype).requires_grad_(False).eval()
    if place.device.type != "meta":
        tower.to_empty(device=place.device)
        generator = torch.Generator(place.device).manual_seed(1)
        for name, tensor in tower.named_parameters():
            tensor.normal_(0.0, _SCALE, generator=generator)
            if tensor.dim() == 1 and name.endswith("weight"):
                tensor.add_(1.0)
    count = sum(tensor.numel() for tensor in tower.parameters())
    return LoadedWeights(digest=_NO_DIGEST, parameters=count)


WHISPER_TINY = WhisperShape(width=384, layers=4, heads=6, hidden=1536, mel_bins=80, positions=1500)

DINOV2_SMALL = Dinov2Shape(
    width=384,
    layers=12,
    heads=6,
    hidden=1536,
    patch=14,
    trained_grid=37,
    epsilon=1e-6,
    gated=False,
    qkv_bias=True,
)

QWEN2_5_VL_7B = Qwen25VisionShape(
    width=1280,
    layers=32,
    heads=16,
    hidden=3420,
    out_width=3584,
    patch=14,
    temporal=2,
    merge=2,
    window=4,
    full=frozenset({7, 15, 23, 31}),
)
QWEN2_5_VL_3B = replace(QWEN2_5_VL_7B, out_width=2048)

QWEN3_VL_8B = Qwen3VisionShape(
    width=1152,
    layers=27,
    heads=16,
    hidden=4304,
    out_width=4096,
    patch=16,
    temporal=2,
    merge=2,
    table_side=48,
    levels=(8, 16, 24),
)
QWEN3_VL_4B = replace(QWEN3_VL_8B, width=1024, layers=24, hidden=4096, out_width=2560, levels=(5, 11, 17))

TINY_WHISPER = replace(WHISPER_TINY, width=32, layers=1, heads=4, hidden=48)
TINY_DINOV2 = replace(DINOV2_SMALL, width=32, layers=1, heads=4, hidden=64)
TINY_QWEN2_5_VL = replace(
    QWEN2_5_VL_7B, width=32, layers=2, heads=4, hidden=48, out_width=24, full=frozenset({1})
)
TINY_QWEN3_VL = replace(
    QWEN3_VL_8B, width=32, layers=2, heads=4, hidden=48, out_width=24, table_side=6, levels=(0,)
)
