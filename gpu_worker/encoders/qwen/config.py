"""Media rules of a Qwen-VL checkpoint, read from its JSON files. What the families cannot do is refused."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import nn

from epd.contracts.embedding import EncoderCard, ImageRules, VideoRules
from epd.contracts.errors import SettingsError
from epd.contracts.media import Modality
from gpu_worker.encoders.checkpoint import Checkpoint, LoadedWeights, load_weights
from gpu_worker.encoders.loading import LoadRequest, colour_scale, dtype_name, require_value, required_int
from gpu_worker.encoders.qwen.parts import ROTARY_BASE, VisionSizes
from gpu_worker.encoders.qwen.sizing import FrameShareRule, PixelBounds
from gpu_worker.preprocess.tensors import ColourScale

#: Pixels of an image in the preprocessor files of Qwen2-VL and 2.5: 4 to 16384 cells of 28 x 28.
_IMAGE_PIXELS = PixelBounds(least=4 * 28 * 28, most=16384 * 28 * 28)

#: Merge cells of one video frame: qwen-vl-utils' VIDEO_MIN_TOKEN_NUM and VIDEO_MAX_TOKEN_NUM.
_FRAME_CELLS = (128, 768)


def read_vision_config(checkpoint: Checkpoint) -> Mapping[str, Any]:
    """The ``vision_config`` section. Raises ``SettingsError`` for what no family can do."""
    config = checkpoint.config.get("vision_config")
    if not isinstance(config, Mapping):
        raise SettingsError(f"{checkpoint.folder}/config.json: no vision_config")
    require_value(config, "in_channels", supported=3)
    require_value(config, "in_chans", supported=3)  # the older name of the same key
    rotary = config.get("rope_parameters") or {}
    require_value(rotary, "rope_type", supported="axial")
    require_value(rotary, "rope_theta", supported=ROTARY_BASE)
    return config


def shared_sizes(config: Mapping[str, Any]) -> dict[str, int]:
    """The sizes with the same key in all families, by the names of ``VisionSizes``."""
    return {
        "layers": required_int(config, "depth"),
        "heads": required_int(config, "num_heads"),
        "patch": required_int(config, "patch_size"),
        "temporal": required_int(config, "temporal_patch_size"),
        "merge": required_int(config, "spatial_merge_size"),
    }


def require_processors(checkpoint: Checkpoint, sizes: VisionSizes) -> None:
    """Refuse preprocessor files, of images or videos, that resize or cut in another way than the tower."""
    for processor in (checkpoint.image_processor, checkpoint.video_processor):
        require_value(processor, "do_resize", supported=True)
        require_value(processor, "resample", supported=3)
        require_value(processor, "patch_size", supported=sizes.patch)
        require_value(processor, "merge_size", supported=sizes.merge)
        require_value(processor, "temporal_patch_size", supported=sizes.temporal)
    require_value(checkpoint.video_processor, "num_frames", supported=None)


def read_scale(checkpoint: Checkpoint, default: ColourScale) -> ColourScale:
    """The colour scale of images and videos. Raises ``SettingsError`` where their files differ."""
    scale = colour_scale(checkpoint.image_processor, default)
    if colour_scale(checkpoint.video_processor, scale) != scale:
        raise SettingsError(
            f"{checkpoint.folder}: image_mean, image_std or rescale_factor of videos are not those of images"
        )
    return scale


def read_bounds(processor: Mapping[str, Any], default: PixelBounds) -> PixelBounds:
    """Older files have min_pixels and max_pixels, newer ones size.shortest_edge and size.longest_edge."""
    size = processor.get("size") or {}
    low = processor.get("min_pixels") or size.get("shortest_edge") or default.least
    high = processor.get("max_pixels") or size.get("longest_edge") or default.most
    return PixelBounds(least=int(low), most=int(high))


def read_share_rule(checkpoint: Checkpoint, sizes: VisionSizes) -> FrameShareRule:
    """The sizes of Qwen2-VL and 2.5: bounds from the preprocessor files, else the published ones."""
    cell = (sizes.patch * sizes.merge) ** 2
    frame = PixelBounds(least=_FRAME_CELLS[0] * cell, most=_FRAME_CELLS[1] * cell)
    return FrameShareRule(
        image=read_bounds(checkpoint.image_processor, _IMAGE_PIXELS),
        frame=read_bounds(checkpoint.video_processor, frame),
        factor=sizes.patch * sizes.merge,
        temporal=sizes.temporal,
    )


def image_rules(bounds: PixelBounds) -> ImageRules:
    """The bounds of an image as the encoder card has them."""
    return ImageRules(min_pixels=bounds.least, max_pixels=bounds.most)


def read_video_rules(
    checkpoint: Checkpoint, *, frame_multiple: int, bounds: PixelBounds | None = None
) -> VideoRules:
    """How frames are sampled: 2 a second, 4 to 768. ``bounds`` are of one frame, if the family has any."""
    processor = checkpoint.video_processor
    return VideoRules(
        fps=float(processor.get("fps") or 2.0),
        min_frames=int(processor.get("min_frames") or 4),
        max_frames=int(processor.get("max_frames") or 768),
        frame_multiple=frame_multiple,
        min_pixels=bounds and bounds.least,
        max_pixels=bounds and bounds.most,
    )


def load_tower(request: LoadRequest, tower: nn.Module) -> LoadedWeights:
    """Fill a tower built on ``meta``. Names begin with ``visual.``, in newer files ``model.visual.``."""
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
