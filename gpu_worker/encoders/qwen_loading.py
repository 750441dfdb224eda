"""Loading that the Qwen-VL families share: the tower's weights, and the card."""

from __future__ import annotations

from torch import nn

from epd.contracts.card import EncoderCard, ImageRules, VideoRules
from epd.contracts.media import Modality
from gpu_worker.encoders.loading import LoadRequest
from gpu_worker.encoders.precision import dtype_name
from gpu_worker.encoders.weights import LoadedWeights, load_weights


def load_tower(request: LoadRequest, tower: nn.Module) -> LoadedWeights:
    """Fill a tower built on ``meta``: published checkpoints say ``visual.``, newer ones ``model.visual.``."""
    return load_weights(
        tower,
        request.checkpoint,
        prefixes=("visual.", "model.visual."),
        device=request.device,
        dtype=request.dtype,
    )


def qwen_card(
    request: LoadRequest,
    weights: LoadedWeights,
    *,
    family: str,
    revision: str,
    hidden: int,
    image: ImageRules,
    video: VideoRules,
) -> EncoderCard:
    """The card of a Qwen-VL encoder; ``hidden`` is the width of an output row."""
    return EncoderCard(
        name=request.name,
        family=family,
        modalities=(Modality.IMAGE, Modality.VIDEO),
        hidden=hidden,
        dtype=dtype_name(request.dtype),
        weights_digest=weights.digest,
        preprocess_revision=revision,
        options=("min_pixels", "max_pixels", "fps", "min_frames", "max_frames"),
        image=image,
        video=video,
        parameters=weights.parameters,
        device=str(request.device),
    )
