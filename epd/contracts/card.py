"""The encoder card: what a GPU worker announces of an encoder, and all that CPU processes need of it.

The API and the CPU workers build embedding keys and decode media from the card alone, so none of them
ever loads a weight or knows a family.
"""

from __future__ import annotations

from pydantic import Field

from epd.contracts.media import Modality
from epd.contracts.wire import Wire


class ImageRules(Wire):
    """Bounds of an image. Pixels are height*width after resizing; ``None`` where the family has none."""

    min_pixels: int | None = None
    max_pixels: int | None = None


class VideoRules(Wire):
    """How frames are sampled from a video: ``fps`` a second, a multiple of ``frame_multiple``, bounded."""

    fps: float = Field(gt=0)
    min_frames: int = Field(ge=1)
    max_frames: int = Field(ge=1)
    frame_multiple: int = Field(default=1, ge=1)
    min_pixels: int | None = None
    max_pixels: int | None = None


class AudioRules(Wire):
    """The sample rate in Hz that the encoder is fed with, always mono."""

    sample_rate: int = Field(ge=1)


class EncoderCard(Wire):
    """One loaded encoder: identity, output and decode rules.

    ``hidden`` is the width of an output row; ``weights_digest`` is the sha256 hex of config and weights;
    ``preprocess_revision`` changes with every change of preprocessing that alters an output;
    ``options`` are the names of the item options that the family accepts.
    """

    name: str
    family: str
    modalities: tuple[Modality, ...]
    hidden: int = Field(ge=1)
    dtype: str
    weights_digest: str = Field(pattern=r"^[0-9a-f]{64}$")
    preprocess_revision: str
    options: tuple[str, ...] = ()
    image: ImageRules | None = None
    video: VideoRules | None = None
    audio: AudioRules | None = None
    parameters: int = 0
    device: str = "cpu"
