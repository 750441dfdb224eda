"""Family ``dinov2``: pictures to the class row and the patch rows of a DINOv2 vision transformer.

An image gives 257 rows at the published sizes: the class row first, then 16 x 16 patches in reading order
(transformers' ``last_hidden_state``). A video is its frames one after the other, each encoded on its own:
frames * 257 rows. ``grid_thw`` is (frames, 16, 16) and ``prefix_tokens`` is 1, the class row of each frame.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from epd.contracts.card import EncoderCard, ImageRules, VideoRules
from epd.contracts.errors import SettingsError, UnsupportedMedia
from epd.contracts.media import ItemOptions, Modality, RawAudio, RawFrames, RawMedia
from gpu_worker.encoders.base import DecodeFacts, Inputs, ItemPlan
from gpu_worker.encoders.dinov2_model import Dinov2Shape, Dinov2Tower
from gpu_worker.encoders.loading import LoadRequest, colour_scale, require_value, required_int
from gpu_worker.encoders.precision import dtype_name
from gpu_worker.encoders.weights import LoadedWeights, load_weights
from gpu_worker.preprocess.fit import CropRule, crop_rule
from gpu_worker.preprocess.normalise import IMAGENET_SCALE, ColourScale, normalise
from gpu_worker.preprocess.resize import resize

PREPROCESS_REVISION = "dinov2-1"

#: DINOv2 has no video rule of its own: one frame a second, as many as a long clip needs to be searched by.
VIDEO_RULES = VideoRules(fps=1.0, min_frames=1, max_frames=64)

_DEFAULT_CROP = CropRule(shortest_edge=256, crop=(224, 224))


class Dinov2Encoder:
    """``Encoder`` for DINOv2 checkpoints."""

    def __init__(self, card: EncoderCard, tower: Dinov2Tower, rule: CropRule, scale: ColourScale) -> None:
        self.card = card
        self._tower = tower
        self._rule = rule
        self._scale = scale
        patch = tower.embeddings.patch_embeddings.projection.kernel_size[0]
        self._grid = (rule.crop[0] // patch, rule.crop[1] // patch)
        self._positions = tower.embeddings.positions_for(self._grid)

    def plan(self, raw: RawMedia, options: ItemOptions) -> ItemPlan:
        """The class row and one row a patch, for each frame."""
        if isinstance(raw, RawAudio):
            raise UnsupportedMedia(f"encoder {self.card.name} takes images and videos, not sound")
        frames = raw.frames if isinstance(raw, RawFrames) else 1
        rows = 1 + self._grid[0] * self._grid[1]
        return ItemPlan(
            tokens=frames * rows,
            cost=frames * rows,
            bucket=self._rule.crop,
            target=self._rule.crop,
            segments=(rows,) * frames,
            facts=DecodeFacts(
                grid_thw=(frames, *self._grid),
                prefix_tokens=1,
                second_per_grid_ts=1.0 / raw.sampled_fps if isinstance(raw, RawFrames) else None,
                video_timestamps=raw.timestamps if isinstance(raw, RawFrames) else None,
            ),
        )

    @torch.inference_mode()
    def preprocess(self, raws: Sequence[Tensor], plans: Sequence[ItemPlan]) -> Inputs:
        """Resize, crop and normalise every frame of every item: float [frames, 3, height, width]."""
        pictures = []
        for raw in raws:
            frames = raw if raw.dim() == 4 else raw[None]
            size, window = self._rule.placed(frames.shape[1], frames.shape[2])
            pictures.append(resize(frames, size, filter_=self._rule.filter_, window=window))
        values = normalise(torch.cat(pictures), self._scale)
        return Inputs(tensors={"pictures": values.to(self._positions.dtype)})

    @torch.inference_mode()
    def forward(self, inputs: Inputs) -> Tensor:
        """[frames * (1 + patches), width]."""
        rows: Tensor = self._tower(inputs.tensors["pictures"], self._positions)
        return rows.flatten(0, 1)

    def warm_up(self) -> None:
        """One black picture."""
        picture = torch.zeros((*self._rule.crop, 3), dtype=torch.uint8, device=self.card.device)
        self.forward(self.preprocess([picture], []))


def load(request: LoadRequest) -> Dinov2Encoder:
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
    scale = colour_scale(request.checkpoint.image_processor, IMAGENET_SCALE)
    return Dinov2Encoder(_card(request, shape, weights), tower, rule, scale)


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


def _card(request: LoadRequest, shape: Dinov2Shape, weights: LoadedWeights) -> EncoderCard:
    return EncoderCard(
        name=request.name,
        family="dinov2",
        modalities=(Modality.IMAGE, Modality.VIDEO),
        hidden=shape.width,
        dtype=dtype_name(request.dtype),
        weights_digest=weights.digest,
        preprocess_revision=PREPROCESS_REVISION,
        options=("fps", "min_frames", "max_frames"),
        image=ImageRules(),
        video=VIDEO_RULES,
        parameters=weights.parameters,
        device=str(request.device),
    )
