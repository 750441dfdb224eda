"""Family ``qwen2_5_vl``: images and videos to rows for the Qwen2.5-VL language model.

Most blocks attend inside square windows of a frame, a few to the whole frame. Rows and times are those of all
Qwen-VL families (``qwen.encoder``). The frames of a video share a budget of pixels, as in qwen-vl-utils, so
that a long video does not outgrow the model's context.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 - torch's own habit

from epd.contracts.errors import SettingsError
from gpu_worker.encoders.attention import Segments, offsets_of
from gpu_worker.encoders.base import GraphForm, Inputs
from gpu_worker.encoders.checkpoint import Checkpoint
from gpu_worker.encoders.loading import LoadRequest, require_value, required_int
from gpu_worker.encoders.qwen.config import read_vision_config, shared_sizes
from gpu_worker.encoders.qwen.encoder import BatchLayout, Grid, QwenEncoder, QwenTower, windowed_form
from gpu_worker.encoders.qwen.layout import pack_windows
from gpu_worker.encoders.qwen.loading import load_sharing
from gpu_worker.encoders.qwen.parts import (
    CellMerger,
    PatchProjection,
    Rotation,
    VisionBlock,
    VisionSizes,
    rms_norm,
)
from gpu_worker.preprocess.tensors import send

PREPROCESS_REVISION = "qwen2_5_vl-1"


@dataclass(frozen=True, kw_only=True, slots=True)
class Qwen25VisionShape(VisionSizes):
    """Sizes of one checkpoint. ``window`` is merge cells a side; ``full`` are the blocks without windows."""

    window: int
    full: frozenset[int]


def _shape(checkpoint: Checkpoint) -> Qwen25VisionShape:
    config = read_vision_config(checkpoint)
    require_value(config, "hidden_act", supported="silu")
    full = config.get("fullatt_block_indexes")
    if not isinstance(full, list):
        raise SettingsError(f"{checkpoint.folder}/config.json: vision_config has no fullatt_block_indexes")
    shared = shared_sizes(config)
    return Qwen25VisionShape(
        **shared,
        width=required_int(config, "hidden_size"),
        hidden=required_int(config, "intermediate_size"),
        out_width=required_int(config, "out_hidden_size"),
        window=required_int(config, "window_size") // shared["merge"] // shared["patch"],
        full=frozenset(full),
    )


class GatedFeedForward(nn.Module):
    """SwiGLU with biases."""

    def __init__(self, shape: Qwen25VisionShape) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(shape.width, shape.hidden)
        self.up_proj = nn.Linear(shape.width, shape.hidden)
        self.down_proj = nn.Linear(shape.hidden, shape.width)

    def forward(self, x: Tensor) -> Tensor:
        """[rows, width] to the same."""
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))  # type: ignore[no-any-return]


class Qwen25VisionTower(QwenTower):
    """Packed patches in window order to rows in reading order."""

    sizes: Qwen25VisionShape

    def __init__(self, shape: Qwen25VisionShape) -> None:
        super().__init__()
        self.sizes = shape
        self.patch_embed = PatchProjection(shape)
        self.blocks = nn.ModuleList(
            VisionBlock(shape, norm=rms_norm, feed_forward=GatedFeedForward(shape))
            for _ in range(shape.layers)
        )
        self.merger = CellMerger(shape, norm=rms_norm)

    @property
    def graph_form(self) -> GraphForm:
        """Patches, the offsets of frames and windows, and the indices that undo the window order."""
        return windowed_form(self.sizes, self.sizes.window)

    def layout_batch(self, grids: Sequence[Grid], device: torch.device) -> BatchLayout:
        """Merge cells in window order; ``restore`` puts the rows back into reading order."""
        layout = pack_windows(grids, self.sizes.merge, self.sizes.window)
        return BatchLayout(
            positions=layout.positions,
            order=layout.order,
            tensors={
                "frame_offsets": offsets_of(layout.frames, device),
                "window_offsets": offsets_of(layout.windows, device),
                "restore": send(layout.restore, device),
            },
            layout={"frames": layout.frames, "windows": layout.windows},
        )

    def forward(self, inputs: Inputs, rotation: Rotation) -> Tensor:
        """Patches [rows, patch values] to [cells, out_width]."""
        held, layout = inputs.tensors, inputs.layout
        frames = Segments(offsets=held["frame_offsets"], lengths=layout["frames"])
        windows = Segments(offsets=held["window_offsets"], lengths=layout["windows"])
        x = self.patch_embed(held["patches"])
        for index, block in enumerate(self.blocks):
            x = block(x, frames if index in self.sizes.full else windows, rotation)
        return torch.as_tensor(self.merger(x)).index_select(0, held["restore"])


def load(request: LoadRequest) -> QwenEncoder:
    """Read the vision tower of a Qwen2.5-VL checkpoint. Raises ``SettingsError`` if it cannot be used."""
    shape = _shape(request.checkpoint)
    with torch.device("meta"):
        tower = Qwen25VisionTower(shape)
    return load_sharing(request, tower, family="qwen2_5_vl", revision=PREPROCESS_REVISION)
