"""Small random checkpoints, made with transformers' own config and model classes."""

from __future__ import annotations

from pathlib import Path

import torch
from transformers import (
    Dinov2Config,
    Dinov2Model,
    Qwen2_5_VLConfig,
    Qwen2_5_VLForConditionalGeneration,
    Qwen2VLImageProcessor,
)

_SEED = 20261129


def make_dinov2(folder: Path) -> Path:
    """Two layers of width 64, so that a batch takes milliseconds."""
    torch.manual_seed(_SEED)
    config = Dinov2Config(
        hidden_size=64, num_hidden_layers=2, num_attention_heads=2, mlp_ratio=2, image_size=518, patch_size=14
    )
    Dinov2Model(config).eval().save_pretrained(folder)
    return folder


def make_slow_dinov2(folder: Path) -> Path:
    """Wide and deep enough that a batch of 32 takes long enough to be killed in."""
    torch.manual_seed(_SEED)
    config = Dinov2Config(
        hidden_size=256, num_hidden_layers=8, num_attention_heads=4, image_size=518, patch_size=14
    )
    Dinov2Model(config).eval().save_pretrained(folder)
    return folder


def make_qwen2_5_vl(folder: Path) -> Path:
    """Four vision blocks, two of them windowed, before a language model that nothing here runs."""
    torch.manual_seed(_SEED)
    config = Qwen2_5_VLConfig(
        text_config={
            "hidden_size": 64,
            "intermediate_size": 96,
            "num_hidden_layers": 1,
            "num_attention_heads": 2,
            "num_key_value_heads": 2,
            "vocab_size": 512,
            "rope_scaling": {"type": "mrope", "mrope_section": [4, 6, 6]},
        },
        vision_config={
            "depth": 4,
            "hidden_size": 64,
            "intermediate_size": 96,
            "num_heads": 4,
            "out_hidden_size": 64,
            "patch_size": 14,
            "window_size": 112,
            "fullatt_block_indexes": [1, 3],
        },
    )
    Qwen2_5_VLForConditionalGeneration(config).eval().save_pretrained(folder)
    Qwen2VLImageProcessor().save_pretrained(folder)
    return folder
