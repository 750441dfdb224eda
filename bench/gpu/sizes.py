"""Sizes of published towers, from their ``config.json``, and tiny ones of the same build for the self-test.

Sources: openai/whisper-tiny, facebook/dinov2-small, Qwen/Qwen2.5-VL-3B-Instruct and -7B-Instruct (the two
differ in their output alone), Qwen/Qwen3-VL-4B-Instruct and -8B-Instruct.
"""

from __future__ import annotations

from dataclasses import replace

from gpu_worker.encoders.dinov2_model import Dinov2Shape
from gpu_worker.encoders.qwen2_5_vl_model import QwenVisionShape
from gpu_worker.encoders.qwen3_vl_model import Qwen3VisionShape
from gpu_worker.encoders.whisper_model import WhisperShape

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

QWEN2_5_VL_7B = QwenVisionShape(
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
