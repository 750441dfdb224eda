"""Family ``qwen2_5_vl``: images and videos to rows for the Qwen2.5-VL language model.

Rows and times are those of every Qwen-VL family (``qwen_encoder``). Frames share a budget of pixels, as in
qwen-vl-utils, so that a long video does not outgrow the model's context.
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
from gpu_worker.encoders.qwen.encoder import Arrangement, Grid, QwenEncoder, windowed_form
from gpu_worker.encoders.qwen.layout import pack
from gpu_worker.encoders.qwen.parts import (
    CellMerger,
    PatchProjection,
    Turn,
    VisionBlock,
    VisionSizes,
    rms_norm,
)
from gpu_worker.encoders.qwen.sharing import load_sharing
from gpu_worker.preprocess.tensors import send


@dataclass(frozen=True, kw_only=True, slots=True)
class QwenVisionShape(VisionSizes):
    """Sizes of one checkpoint. ``window`` is merge cells a side; ``full`` are the blocks without windows."""

    window: int
    full: frozenset[int]


class GatedFeedForward(nn.Module):
    """SwiGLU with biases."""

    def __init__(self, shape: QwenVisionShape) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(shape.width, shape.hidden)
        self.up_proj = nn.Linear(shape.width, shape.hidden)
        self.down_proj = nn.Linear(shape.hidden, shape.width)

    def forward(self, x: Tensor) -> Tensor:
        """[rows, width] to the same."""
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))  # type: ignore[no-any-return]


class QwenVisionTower(nn.Module):
    """Packed patches in window order to rows in reading order."""

    def __init__(self, shape: QwenVisionShape) -> None:
        super().__init__()
        self.full = shape.full
        self.patch_embed = PatchProjection(shape)
        self.blocks = nn.ModuleList(
            VisionBlock(shape, norm=rms_norm, feed_forward=GatedFeedForward(shape))
            for _ in range(shape.layers)
        )
        self.merger = CellMerger(shape, norm=rms_norm)

    def forward(
        self, patches: Tensor, turn: Turn, frames: Segments, windows: Segments, restore: Tensor
    ) -> Tensor:
        """[rows, patch values] to [cells, out_width]."""
        x = self.patch_embed(patches)
        for index, block in enumerate(self.blocks):
            x = block(x, frames if index in self.full else windows, turn)
        return torch.as_tensor(self.merger(x)).index_select(0, restore)


PREPROCESS_REVISION = "qwen2_5_vl-1"


@dataclass(frozen=True, kw_only=True, slots=True)
class WindowArm:
    """The tower of Qwen2.5-VL, and its windows."""

    tower: QwenVisionTower
    sizes: QwenVisionShape
    levels: int = 0

    @property
    def graph_form(self) -> GraphForm:
        """Rows, the offsets of frames and windows, and the places that undo the window order."""
        return windowed_form(self.sizes, self.sizes.window)

    def arrange(self, grids: Sequence[Grid], device: torch.device) -> Arrangement:
        """Merge cells in window order; ``restore`` puts the rows back into reading order."""
        layout = pack(grids, self.sizes.merge, self.sizes.window)
        return Arrangement(
            positions=layout.positions,
            order=layout.order,
            tensors={
                "frame_offsets": offsets_of(layout.frames, device),
                "window_offsets": offsets_of(layout.windows, device),
                "restore": send(layout.restore, device),
            },
            layout={"frames": layout.frames, "windows": layout.windows},
        )

    def rows(self, inputs: Inputs, turn: Turn) -> Tensor:
        """[cells, out_width]."""
        held, layout = inputs.tensors, inputs.layout
        rows: Tensor = self.tower(
            held["patches"],
            turn,
            Segments(offsets=held["frame_offsets"], lengths=layout["frames"]),
            Segments(offsets=held["window_offsets"], lengths=layout["windows"]),
            held["restore"],
        )
        return rows


def load(request: LoadRequest) -> QwenEncoder:
    """Read the vision tower of a Qwen2.5-VL checkpoint."""
    shape = _shape(request.checkpoint)
    with torch.device("meta"):
        tower = QwenVisionTower(shape)
    arm = WindowArm(tower=tower, sizes=shape)
    return load_sharing(request, arm, tower, family="qwen2_5_vl", revision=PREPROCESS_REVISION)


def _shape(checkpoint: Checkpoint) -> QwenVisionShape:
    config = read_vision_config(checkpoint)
    require_value(config, "hidden_act", supported="silu")
    full = config.get("fullatt_block_indexes")
    if not isinstance(full, list):
        raise SettingsError(f"{checkpoint.folder}/config.json: vision_config has no fullatt_block_indexes")
    shared = shared_sizes(config)
    return QwenVisionShape(
        **shared,
        width=required_int(config, "hidden_size"),
        hidden=required_int(config, "intermediate_size"),
        out_width=required_int(config, "out_hidden_size"),
        window=required_int(config, "window_size") // shared["merge"] // shared["patch"],
        full=frozenset(full),
    )
