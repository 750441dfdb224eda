"""Encoders with random weights, made where they will run: sizes are real, values cost no file and no copy.

They are the worker's own encoder classes around the worker's own towers; only the reading of a checkpoint is
left out.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from torch import nn

from gpu_worker.encoders import dinov2, qwen2_5_vl, qwen3_vl, whisper
from gpu_worker.encoders.activations import tanh_gelu
from gpu_worker.encoders.checkpoint import Checkpoint
from gpu_worker.encoders.dinov2_model import Dinov2Shape, Dinov2Tower
from gpu_worker.encoders.loading import LoadRequest
from gpu_worker.encoders.picture_encoder import VIDEO_RULES, PictureEncoder, PictureRows, picture_card
from gpu_worker.encoders.qwen2_5_vl_model import QwenVisionShape, QwenVisionTower
from gpu_worker.encoders.qwen3_vl_model import Qwen3VisionShape, Qwen3VisionTower
from gpu_worker.encoders.qwen_config import image_rules
from gpu_worker.encoders.qwen_encoder import QwenEncoder
from gpu_worker.encoders.qwen_loading import qwen_card
from gpu_worker.encoders.qwen_parts import VisionSizes
from gpu_worker.encoders.qwen_sizing import FrameShareRule, PixelBounds, VolumeRule
from gpu_worker.encoders.speech_config import speech_card
from gpu_worker.encoders.weights import LoadedWeights
from gpu_worker.encoders.whisper_model import WhisperShape, WhisperTower
from gpu_worker.preprocess.fit import CropRule
from gpu_worker.preprocess.logmel import MelRule
from gpu_worker.preprocess.normalise import CLIP_SCALE, HALF_SCALE, IMAGENET_SCALE

#: Standard deviation of the weights: activations stay finite through all layers.
_SCALE = 0.02
_NO_DIGEST = "0" * 64


@dataclass(frozen=True, slots=True)
class Place:
    """Device and dtype of an encoder; on ``meta`` it has shapes and no values."""

    device: torch.device
    dtype: torch.dtype


def random_whisper(name: str, shape: WhisperShape, place: Place) -> whisper.WhisperEncoder:
    """Windows of as many seconds as the tower's positions ask for: two feature frames of 10 ms a row."""
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


def random_dinov2(name: str, shape: Dinov2Shape, place: Place) -> PictureEncoder:
    """Pictures of 224 pixels a side, from a shorter side of 256."""
    with torch.device("meta"):
        tower = Dinov2Tower(shape)
    weights, side = _filled(tower, place), 224 // shape.patch
    card = picture_card(
        _request(name, place),
        weights,
        family="dinov2",
        revision=dinov2.PREPROCESS_REVISION,
        width=shape.width,
    )
    return PictureEncoder(
        card,
        partial(tower, positions=tower.embeddings.positions_for((side, side))),
        rows=PictureRows(grid=(side, side), prefix=1),
        rule=CropRule(shortest_edge=256, crop=(224, 224)),
        scale=IMAGENET_SCALE,
    )


def random_qwen2_5_vl(name: str, shape: QwenVisionShape, place: Place) -> QwenEncoder:
    """With the published bounds of an image."""
    with torch.device("meta"):
        tower = QwenVisionTower(shape)
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
    return QwenEncoder(card, qwen2_5_vl.WindowArm(tower=tower, sizes=shape), rule=rule, scale=CLIP_SCALE)


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
    return QwenEncoder(card, qwen3_vl.DeepstackArm(tower=tower, sizes=shape), rule=rule, scale=HALF_SCALE)


def _bounds(sizes: VisionSizes, *, least: int) -> PixelBounds:
    """Pixels of ``least`` to 16384 merge cells."""
    cell = (sizes.patch * sizes.merge) ** 2
    return PixelBounds(least=least * cell, most=16384 * cell)


def _request(name: str, place: Place) -> LoadRequest:
    """What a card is made from; there is no checkpoint behind it."""
    return LoadRequest(
        name=name, checkpoint=Checkpoint(Path("random")), device=place.device, dtype=place.dtype
    )


@torch.no_grad()
def _filled(tower: nn.Module, place: Place) -> LoadedWeights:
    """Give a tower that was built on ``meta`` memory and random values; weights of norms are about one."""
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
