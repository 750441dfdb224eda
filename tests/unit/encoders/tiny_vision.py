"""Small random checkpoints of the vision families besides those in ``tiny_checkpoints``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from gpu_worker.encoders.attention import Activation, quick_gelu, tanh_gelu
from gpu_worker.encoders.image.clip import ClipTower
from gpu_worker.encoders.image.siglip import SiglipTower
from gpu_worker.encoders.image.vit import VitShape
from gpu_worker.encoders.qwen.parts import VisionSizes
from gpu_worker.encoders.qwen.qwen2_vl import Qwen2VisionTower
from gpu_worker.encoders.qwen.qwen3_vl import Qwen3VisionShape, Qwen3VisionTower
from tests.unit.encoders.tiny_tensors import random_state

QWEN2 = {
    "vision_config": {
        "depth": 2,
        "embed_dim": 32,
        "mlp_ratio": 2,
        "num_heads": 4,
        "hidden_size": 24,
        "patch_size": 14,
        "temporal_patch_size": 2,
        "spatial_merge_size": 2,
    }
}
QWEN3 = {
    "vision_config": {
        "depth": 3,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_heads": 4,
        "out_hidden_size": 24,
        "patch_size": 16,
        "temporal_patch_size": 2,
        "spatial_merge_size": 2,
        "num_position_embeddings": 36,
        "deepstack_visual_indexes": [0, 1],
    }
}


def qwen2_state() -> dict[str, Tensor]:
    sizes = VisionSizes(width=32, layers=2, heads=4, hidden=64, out_width=24, patch=14, temporal=2, merge=2)
    return random_state(Qwen2VisionTower(sizes, quick_gelu), "visual.")


def qwen3_state() -> dict[str, Tensor]:
    shape = Qwen3VisionShape(
        width=32,
        layers=3,
        heads=4,
        hidden=48,
        out_width=24,
        patch=16,
        temporal=2,
        merge=2,
        table_side=6,
        levels=(0, 1),
    )
    return random_state(Qwen3VisionTower(shape, tanh_gelu), "model.visual.")


VIT = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "image_size": 56,
    "patch_size": 14,
}


def vit_shape(activation: Activation, epsilon: float) -> VitShape:
    return VitShape(
        width=32, layers=2, heads=4, hidden=48, image=56, patch=14, epsilon=epsilon, activation=activation
    )


def clip_state() -> dict[str, Tensor]:
    return random_state(ClipTower(vit_shape(quick_gelu, 1e-5)), "vision_model.")


def siglip_state() -> dict[str, Tensor]:
    return random_state(SiglipTower(vit_shape(tanh_gelu, 1e-6)), "vision_model.")


#: Family to its configuration and a maker of its tensors.
TINY_VISION: dict[str, tuple[dict[str, Any], Callable[[], dict[str, Tensor]]]] = {
    "qwen2_vl": (QWEN2, qwen2_state),
    "qwen3_vl": (QWEN3, qwen3_state),
    "clip": ({"vision_config": VIT}, clip_state),
    "siglip": ({"vision_config": VIT}, siglip_state),
}
