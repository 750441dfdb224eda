"""Sizes and media rules of a Qwen-VL checkpoint, read from its JSON files."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from epd.contracts.card import ImageRules, VideoRules
from epd.contracts.errors import SettingsError
from gpu_worker.encoders.checkpoint import Checkpoint
from gpu_worker.encoders.loading import require_value, required_int
from gpu_worker.encoders.qwen2_5_vl_model import QwenVisionShape

#: Pixels of an image in the published checkpoints' preprocessor files, in factors of 28 x 28: 4 to 16384.
_IMAGE_PIXELS = (4 * 28 * 28, 16384 * 28 * 28)

#: Pixels of one video frame, the same: qwen-vl-utils' VIDEO_MIN_TOKEN_NUM and VIDEO_MAX_TOKEN_NUM.
_FRAME_CELLS = (128, 768)


def read_vision_shape(checkpoint: Checkpoint) -> QwenVisionShape:
    """Sizes of the tower from ``vision_config``. Raises ``SettingsError`` for what the module cannot do."""
    config = checkpoint.config.get("vision_config")
    if not isinstance(config, Mapping):
        raise SettingsError(f"{checkpoint.folder}/config.json: no vision_config")
    require_value(config, "hidden_act", supported="silu")
    require_value(config, "in_channels", supported=3)
    full = config.get("fullatt_block_indexes")
    if not isinstance(full, list):
        raise SettingsError(f"{checkpoint.folder}/config.json: vision_config has no fullatt_block_indexes")
    patch, merge = required_int(config, "patch_size"), required_int(config, "spatial_merge_size")
    return QwenVisionShape(
        width=required_int(config, "hidden_size"),
        layers=required_int(config, "depth"),
        heads=required_int(config, "num_heads"),
        hidden=required_int(config, "intermediate_size"),
        out_width=required_int(config, "out_hidden_size"),
        patch=patch,
        temporal=required_int(config, "temporal_patch_size"),
        merge=merge,
        window=required_int(config, "window_size") // merge // patch,
        full=frozenset(full),
    )


def read_image_rules(checkpoint: Checkpoint) -> ImageRules:
    """Pixel bounds of images: the preprocessor file's, else the published ones."""
    low, high = _pixel_bounds(checkpoint.image_processor, _IMAGE_PIXELS)
    return ImageRules(min_pixels=low, max_pixels=high)


def read_video_rules(checkpoint: Checkpoint, shape: QwenVisionShape) -> VideoRules:
    """Frame rule of qwen-vl-utils (2 a second, 4 to 768 frames, whole pairs); pixel bounds a frame."""
    cell = (shape.patch * shape.merge) ** 2
    processor = checkpoint.video_processor
    low, high = _pixel_bounds(processor, (_FRAME_CELLS[0] * cell, _FRAME_CELLS[1] * cell))
    return VideoRules(
        fps=float(processor.get("fps") or 2.0),
        min_frames=int(processor.get("min_frames") or 4),
        max_frames=int(processor.get("max_frames") or 768),
        frame_multiple=shape.temporal,
        min_pixels=low,
        max_pixels=high,
    )


def require_processor(checkpoint: Checkpoint, shape: QwenVisionShape) -> None:
    """Refuse a preprocessor file that resizes or cuts otherwise than this family does."""
    processor = checkpoint.image_processor
    require_value(processor, "do_resize", supported=True)
    require_value(processor, "resample", supported=3)
    require_value(processor, "patch_size", supported=shape.patch)
    require_value(processor, "merge_size", supported=shape.merge)
    require_value(processor, "temporal_patch_size", supported=shape.temporal)


def _pixel_bounds(processor: Mapping[str, Any], default: tuple[int, int]) -> tuple[int, int]:
    """Older files say min_pixels and max_pixels, newer ones size.shortest_edge and size.longest_edge."""
    size = processor.get("size") or {}
    low = processor.get("min_pixels") or size.get("shortest_edge") or default[0]
    high = processor.get("max_pixels") or size.get("longest_edge") or default[1]
    return int(low), int(high)
