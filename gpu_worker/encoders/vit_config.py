"""What CLIP's and SigLIP's checkpoints say of their vision towers, and the loading that both share."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from torch import nn

from epd.contracts.errors import SettingsError
from gpu_worker.encoders.activations import read_activation
from gpu_worker.encoders.checkpoint import Checkpoint
from gpu_worker.encoders.loading import LoadRequest, require_value, required_int
from gpu_worker.encoders.vit_parts import VitShape
from gpu_worker.encoders.weights import LoadedWeights, load_weights
from gpu_worker.preprocess.fit import FitRule


def read_vit_shape(checkpoint: Checkpoint, *, published: Mapping[str, Any]) -> VitShape:
    """Sizes from ``vision_config``, or from the file itself where it is of a vision tower alone.

    Files state only what differs from the first published checkpoint; ``published`` is that one's.
    Raises ``SettingsError`` for what the modules cannot do.
    """
    section = checkpoint.config.get("vision_config", checkpoint.config)
    if not isinstance(section, Mapping):
        raise SettingsError(f"{checkpoint.folder}/config.json: vision_config is not an object")
    config = {**published, **section}
    require_value(config, "num_channels", supported=3)
    width, heads = required_int(config, "hidden_size"), required_int(config, "num_attention_heads")
    if width % heads:
        raise SettingsError(f"checkpoint: hidden_size {width} does not divide by num_attention_heads {heads}")
    return VitShape(
        width=width,
        layers=required_int(config, "num_hidden_layers"),
        heads=heads,
        hidden=required_int(config, "intermediate_size"),
        image=required_int(config, "image_size"),
        patch=required_int(config, "patch_size"),
        epsilon=float(config["layer_norm_eps"]),
        activation=read_activation(config, str(published["hidden_act"])),
    )


def require_fit(rule: FitRule, shape: VitShape) -> None:
    """The positions were learned for one size: refuse a preprocessor file that makes another."""
    if rule.fitted != (shape.image, shape.image):
        raise SettingsError(
            f"preprocessor_config.json: size or crop_size gives {rule.fitted}, not image_size {shape.image}"
        )


def load_vit(request: LoadRequest, tower: nn.Module, *, unused: Collection[str]) -> LoadedWeights:
    """Fill a tower built on ``meta`` from a whole model's checkpoint, or from a vision tower's own."""
    return load_weights(
        tower,
        request.checkpoint,
        prefixes=("vision_model.", ""),
        device=request.device,
        dtype=request.dtype,
        unused=("embeddings.position_ids", *unused),
    )
