"""Family ``qwen2_vl``: images and videos to rows for the Qwen2-VL language model.

Every patch attends to its whole frame. Rows and times are those of all Qwen-VL families (``qwen.encoder``),
sizes follow the same rules as ``qwen2_5_vl``.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from gpu_worker.encoders.attention import Activation, Segments, offsets_of, read_activation
from gpu_worker.encoders.base import GraphForm, Inputs
from gpu_worker.encoders.checkpoint import Checkpoint
from gpu_worker.encoders.loading import LoadRequest, required_int
from gpu_worker.encoders.qwen.config import read_vision_config, shared_sizes
from gpu_worker.encoders.qwen.encoder import BatchLayout, Grid, QwenEncoder, QwenTower, packed_form
from gpu_worker.encoders.qwen.layout import pack_plain
from gpu_worker.encoders.qwen.loading import load_sharing
from gpu_worker.encoders.qwen.parts import (
    CellMerger,
    PatchProjection,
    Rotation,
    VisionBlock,
    VisionSizes,
    layer_norm,
)

PREPROCESS_REVISION = "qwen2_vl-1"


def _sizes(checkpoint: Checkpoint) -> VisionSizes:
    """``embed_dim`` is the tower's width; ``hidden_size`` is the language model's."""
    config = read_vision_config(checkpoint)
    width = required_int(config, "embed_dim")
    return VisionSizes(
        **shared_sizes(config),
        width=width,
        hidden=int(width * config.get("mlp_ratio", 4)),
        out_width=required_int(config, "hidden_size"),
    )


class FeedForward(nn.Module):
    """Two layers with the checkpoint's activation between."""

    def __init__(self, sizes: VisionSizes, activation: Activation) -> None:
        super().__init__()
        self.fc1 = nn.Linear(sizes.width, sizes.hidden)
        self.fc2 = nn.Linear(sizes.hidden, sizes.width)
        self.activation = activation

    def forward(self, x: Tensor) -> Tensor:
        """[rows, width] to the same."""
        return self.fc2(self.activation(self.fc1(x)))  # type: ignore[no-any-return]


class Qwen2VisionTower(QwenTower):
    """Packed patches to rows, both in reading order of the merge cells."""

    def __init__(self, sizes: VisionSizes, activation: Activation) -> None:
        super().__init__()
        self.sizes = sizes
        self.patch_embed = PatchProjection(sizes)
        self.blocks = nn.ModuleList(
            VisionBlock(sizes, norm=layer_norm, feed_forward=FeedForward(sizes, activation))
            for _ in range(sizes.layers)
        )
        self.merger = CellMerger(sizes, norm=layer_norm)

    @property
    def graph_form(self) -> GraphForm:
        """Patches, with the offsets of frames."""
        return packed_form(self.sizes)

    def layout_batch(self, grids: Sequence[Grid], device: torch.device) -> BatchLayout:
        """Reading order of merge cells."""
        layout = pack_plain(grids, self.sizes.merge)
        return BatchLayout(
            positions=layout.positions,
            tensors={"frame_offsets": offsets_of(layout.frames, device)},
            layout={"frames": layout.frames},
        )

    def forward(self, inputs: Inputs, rotation: Rotation) -> Tensor:
        """Patches [rows, patch values] to [cells, out_width]."""
        frames = Segments(offsets=inputs.tensors["frame_offsets"], lengths=inputs.layout["frames"])
        x = self.patch_embed(inputs.tensors["patches"])
        for block in self.blocks:
            x = block(x, frames, rotation)
        return torch.as_tensor(self.merger(x))


def load(request: LoadRequest) -> QwenEncoder:
    """Read the vision tower of a Qwen2-VL checkpoint. Raises ``SettingsError`` if it cannot be used."""
    sizes = _sizes(request.checkpoint)
    activation = read_activation(read_vision_config(request.checkpoint), "quick_gelu")
    with torch.device("meta"):
        tower = Qwen2VisionTower(sizes, activation)
    return load_sharing(request, tower, family="qwen2_vl", revision=PREPROCESS_REVISION)
