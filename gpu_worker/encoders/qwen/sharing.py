"""Loading of Qwen2-VL and 2.5: their frames share a budget of pixels, and their colours are CLIP's."""

from __future__ import annotations

from torch import nn

from gpu_worker.encoders.loading import LoadRequest
from gpu_worker.encoders.qwen.config import (
    image_rules,
    load_tower,
    qwen_card,
    read_scale,
    read_share_rule,
    read_video_rules,
    require_processors,
)
from gpu_worker.encoders.qwen.encoder import QwenArm, QwenEncoder
from gpu_worker.preprocess.tensors import CLIP_SCALE


def load_sharing(
    request: LoadRequest, arm: QwenArm, tower: nn.Module, *, family: str, revision: str
) -> QwenEncoder:
    """The encoder of an arm whose ``tower`` was built on ``meta``, filled from the checkpoint.

    Raises ``SettingsError`` for preprocessor files that ask for what the families do not do.
    """
    checkpoint, sizes = request.checkpoint, arm.sizes
    require_processors(checkpoint, sizes)
    rule = read_share_rule(checkpoint, sizes)
    card = qwen_card(
        request,
        load_tower(request, tower),
        family=family,
        revision=revision,
        hidden=sizes.out_width,
        image=image_rules(rule.image),
        video=read_video_rules(checkpoint, frame_multiple=sizes.temporal, bounds=rule.frame),
    )
    return QwenEncoder(card, arm, rule=rule, scale=read_scale(checkpoint, CLIP_SCALE))
