"""Random DINOv2 checkpoints of a chosen size, loaded as a worker loads any: values cost no time."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import save_file

from epd.config import EncoderConfig
from gpu_worker.encoders.base import Encoder
from gpu_worker.encoders.dinov2_model import Dinov2Shape, Dinov2Tower
from gpu_worker.encoders.registry import load_encoder

_PATCH = 14
_TRAINED_GRID = 37
_SCALE = 0.02  #: standard deviation of the weights: activations stay finite through all layers


@dataclass(frozen=True, slots=True)
class Size:
    """A DINOv2 of ``width`` and ``layers`` with ``heads`` for square pictures of ``side`` pixels."""

    name: str
    width: int
    layers: int
    heads: int
    side: int


#: One item is over sooner than its operators can be launched: what packing is for.
SMALL = Size("small", width=64, layers=12, heads=2, side=56)
#: facebook/dinov2-small: 22 M parameters, 257 rows a picture.
REALISTIC = Size("dinov2-small", width=384, layers=12, heads=6, side=224)


def load_random(size: Size, folder: Path, dtype: str = "float32") -> Encoder:
    """Write a float32 checkpoint of random weights below ``folder``, and load it onto the CPU.

    ``dtype`` as in ``epd.toml``: ``auto`` is what a worker chooses here.
    """
    path = folder / size.name
    path.mkdir(parents=True)
    (path / "config.json").write_text(json.dumps(_config(size)))
    crop = {"height": size.side, "width": size.side}
    processor = {"size": {"shortest_edge": size.side * 8 // 7}, "crop_size": crop}
    (path / "preprocessor_config.json").write_text(json.dumps(processor))
    generator = torch.Generator().manual_seed(1)
    with torch.device("meta"):
        wanted = Dinov2Tower(_shape(size)).state_dict()
    state = {name: torch.randn(meta.shape, generator=generator) * _SCALE for name, meta in wanted.items()}
    save_file(state, path / "model.safetensors")
    config = {"family": "dinov2", "path": str(path), "dtype": dtype, "device": "cpu"}
    return load_encoder(size.name, EncoderConfig.model_validate(config))


def _shape(size: Size) -> Dinov2Shape:
    return Dinov2Shape(
        width=size.width,
        layers=size.layers,
        heads=size.heads,
        hidden=4 * size.width,
        patch=_PATCH,
        trained_grid=_TRAINED_GRID,
        epsilon=1e-6,
        gated=False,
        qkv_bias=True,
    )


def _config(size: Size) -> dict[str, int]:
    return {
        "hidden_size": size.width,
        "num_hidden_layers": size.layers,
        "num_attention_heads": size.heads,
        "patch_size": _PATCH,
        "image_size": _TRAINED_GRID * _PATCH,
        "mlp_ratio": 4,
    }
