"""Family ``dinov2``: pictures to the class row and the patch rows of a DINOv2 vision transformer.

An image gives 257 rows at the published sizes: the class row first, then 16 x 16 patches in reading order
(transformers' ``last_hidden_state``). A video gives that for each of its frames (``picture_encoder``).
"""

from __future__ import annotations

from functools import partial

import torch

from epd.contracts.errors import SettingsError
from gpu_worker.encoders.dinov2_model import Dinov2Shape, Dinov2Tower
from gpu_worker.encoders.loading import LoadRequest, colour_scale, require_value, required_int
from gpu_worker.encoders.picture_encoder import PictureEncoder, PictureRows, picture_card
from gpu_worker.encoders.weights import load_weights
from gpu_worker.preprocess.fit import CropRule, crop_rule
from gpu_worker.preprocess.normalise import IMAGENET_SCALE

PREPROCESS_REVISION = "dinov2-1"

_DEFAULT_CROP = CropRule(shortest_edge=256, crop=(224, 224))


def load(request: LoadRequest) -> PictureEncoder:
    """Read a DINOv2 checkpoint (``Dinov2Model``, or the backbone of a classifier)."""
    shape = _shape(request)
    rule = crop_rule(request.checkpoint.image_processor, _DEFAULT_CROP)
    if any(side % shape.patch for side in rule.crop):
        raise SettingsError(f"preprocessor_config.json: crop_size {rule.crop} is not in {shape.patch}s")
    with torch.device("meta"):
        tower = Dinov2Tower(shape)
    weights = load_weights(
        tower,
        request.checkpoint,
        prefixes=("", "dinov2."),
        device=request.device,
        dtype=request.dtype,
        unused=("embeddings.mask_token",),
    )
    grid = (rule.crop[0] // shape.patch, rule.crop[1] // shape.patch)
    card = picture_card(request, weights, family="dinov2", revision=PREPROCESS_REVISION, width=shape.width)
    return PictureEncoder(
        card,
        partial(tower, positions=tower.embeddings.positions_for(grid)),
        rows=PictureRows(grid=grid, prefix=1),
        rule=rule,
        scale=colour_scale(request.checkpoint.image_processor, IMAGENET_SCALE),
    )


def _shape(request: LoadRequest) -> Dinov2Shape:
    config = request.checkpoint.config
    require_value(config, "hidden_act", supported="gelu")
    width, patch = required_int(config, "hidden_size"), required_int(config, "patch_size")
    return Dinov2Shape(
        width=width,
        layers=required_int(config, "num_hidden_layers"),
        heads=required_int(config, "num_attention_heads"),
        hidden=int(width * config.get("mlp_ratio", 4)),
        patch=patch,
        trained_grid=required_int(config, "image_size") // patch,
        epsilon=float(config.get("layer_norm_eps", 1e-6)),
        gated=bool(config.get("use_swiglu_ffn", False)),
        qkv_bias=bool(config.get("qkv_bias", True)),
    )
