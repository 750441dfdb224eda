"""``Encoder`` of the families that resize every image to one size: DINOv2, CLIP and SigLIP.

Each frame of a video is encoded by itself, in order. ``grid_thw`` is (frames, rows, columns) of patches, and
``prefix_tokens`` is the number of rows in front of the patches of each frame.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from epd.contracts.embedding import EncoderCard, ImageRules, VideoRules
from epd.contracts.errors import UnsupportedMedia
from epd.contracts.media import ItemOptions, Modality, RawAudio, RawFrames, RawMedia
from gpu_worker.encoders.base import DecodeFacts, GraphForm, Inputs, ItemPlan
from gpu_worker.encoders.checkpoint import LoadedWeights
from gpu_worker.encoders.loading import LoadRequest, dtype_name
from gpu_worker.preprocess.fit import FitRule
from gpu_worker.preprocess.resize import resize
from gpu_worker.preprocess.tensors import ColourScale, normalise

#: The families have no video rule of their own: one frame a second, enough of them to search a long clip.
VIDEO_RULES = VideoRules(fps=1.0, min_frames=1, max_frames=64)

#: Normalised images [images, 3, H, W] to [images, rows, width].
ImageTower = Callable[[Tensor], Tensor]


@dataclass(frozen=True, kw_only=True, slots=True)
class ImageRows:
    """The rows of one image: ``prefix`` rows, then ``grid`` (height, width) of patches in reading order."""

    grid: tuple[int, int]
    prefix: int

    @property
    def count(self) -> int:
        """Rows of one image."""
        return self.prefix + self.grid[0] * self.grid[1]


class ImageEncoder:
    """``Encoder`` for towers that take images of one size."""

    graph_form = GraphForm(units="images")

    def __init__(
        self, card: EncoderCard, tower: ImageTower, *, rows: ImageRows, rule: FitRule, scale: ColourScale
    ) -> None:
        self.card = card
        self._tower = tower
        self._rows = rows
        self._rule = rule
        self._scale = scale
        self._dtype: torch.dtype = getattr(torch, card.dtype)

    def plan(self, raw: RawMedia, options: ItemOptions) -> ItemPlan:
        """The same rows for each frame, whatever its size. Raises ``UnsupportedMedia`` for audio."""
        if isinstance(raw, RawAudio):
            raise UnsupportedMedia(f"encoder {self.card.name} takes images and videos, not audio")
        frames = raw.frames if isinstance(raw, RawFrames) else 1
        rows = self._rows.count
        return ItemPlan(
            tokens=frames * rows,
            cost=frames * rows,
            bucket=self._rule.fitted,
            target=self._rule.fitted,
            segments=(rows,) * frames,
            raw_step=1,
            facts=DecodeFacts(
                grid_thw=(frames, *self._rows.grid),
                prefix_tokens=self._rows.prefix,
                second_per_grid_ts=1.0 / raw.sampled_fps if isinstance(raw, RawFrames) else None,
                video_timestamps=raw.timestamps if isinstance(raw, RawFrames) else None,
            ),
        )

    @torch.inference_mode()
    def preprocess(self, raws: Sequence[Tensor], plans: Sequence[ItemPlan]) -> Inputs:
        """Resize, crop and normalise every frame of every item: float [frames, 3, height, width]."""
        images = []
        for raw in raws:
            frames = raw if raw.dim() == 4 else raw[None]
            size, window = self._rule.placed(frames.shape[1], frames.shape[2])
            images.append(resize(frames, size, filter_=self._rule.filter_, window=window))
        values = normalise(torch.cat(images), self._scale)
        return Inputs(tensors={"images": values.to(self._dtype)})

    @torch.inference_mode()
    def forward(self, inputs: Inputs) -> Tensor:
        """[frames * rows, width]."""
        return self._tower(inputs.tensors["images"]).flatten(0, 1)

    def sample(self) -> Inputs:
        """One black image."""
        image = torch.zeros((*self._rule.fitted, 3), dtype=torch.uint8, device=self.card.device)
        return self.preprocess([image], [])

    def warm_up(self) -> None:
        """Run the sample through the tower once."""
        self.forward(self.sample())


def image_card(
    request: LoadRequest, weights: LoadedWeights, *, family: str, revision: str, width: int
) -> EncoderCard:
    """The card of such an encoder; ``width`` is that of an output row."""
    return EncoderCard(
        name=request.name,
        family=family,
        modalities=(Modality.IMAGE, Modality.VIDEO),
        hidden=width,
        dtype=dtype_name(request.dtype),
        weights_digest=weights.digest,
        preprocess_revision=revision,
        options=("fps", "min_frames", "max_frames"),
        image=ImageRules(),
        video=VIDEO_RULES,
        parameters=weights.parameters,
        device=str(request.device),
    )
