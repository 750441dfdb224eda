"""Family ``qwen2_5_vl``: images and videos to rows for the Qwen2.5-VL language model.

Rows and times are those of every Qwen-VL family (``qwen_encoder``). Frames share a budget of pixels, as in
qwen-vl-utils, so that a long video does not outgrow the model's context.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from epd.contracts.errors import SettingsError
from gpu_worker.encoders.base import Inputs
from gpu_worker.encoders.checkpoint import Checkpoint
from gpu_worker.encoders.graph_form import GraphForm
from gpu_worker.encoders.loading import LoadRequest, require_value, required_int
from gpu_worker.encoders.qwen2_5_vl_model import QwenVisionShape, QwenVisionTower
from gpu_worker.encoders.qwen_config import read_vision_config, shared_sizes
from gpu_worker.encoders.qwen_encoder import Arrangement, Grid, QwenEncoder
from gpu_worker.encoders.qwen_graphs import windowed_form
from gpu_worker.encoders.qwen_layout import pack
from gpu_worker.encoders.qwen_parts import Turn
from gpu_worker.encoders.qwen_sharing import load_sharing
from gpu_worker.encoders.segments import Segments, offsets_of
from gpu_worker.preprocess.sending import send

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
