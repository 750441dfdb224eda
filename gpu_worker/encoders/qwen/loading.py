"""Loading of Qwen2-VL and Qwen2.5-VL: their frames share a budget of pixels, their colours are CLIP's."""

from __future__ import annotations

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
from gpu_worker.encoders.qwen.encoder import QwenEncoder, QwenTower
from gpu_worker.preprocess.tensors import CLIP_SCALE


def load_sharing(request: LoadRequest, tower: QwenTower, *, family: str, revision: str) -> QwenEncoder:
    """The encoder of a tower that was built on ``meta``, filled from the checkpoint.

    Raises:
        SettingsError: the preprocessor files ask for something that the families do not do.
    """
    checkpoint, sizes = request.checkpoint, tower.sizes
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
    return QwenEncoder(card, tower, rule=rule, scale=read_scale(checkpoint, CLIP_SCALE))
