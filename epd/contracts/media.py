"""Media as the pipeline sees it: types, sources, per-item options and decoded raw media."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Literal

from pydantic import Field, model_validator

from epd.contracts.wire import Wire


class Modality(StrEnum):
    """What an encoder takes as input. It also names the track of a part (a video's ``audio``)."""

    IMAGE = "image"
    VIDEO = "video"
    AUDIO = "audio"


#: A rough size in bytes for a media file whose size is not known yet, by type.
NOMINAL_BYTES = {Modality.IMAGE: 2 << 20, Modality.AUDIO: 8 << 20, Modality.VIDEO: 32 << 20}


class AudioTrackMode(StrEnum):
    """What to do with the audio track of a video."""

    AUTO = "auto"  #: encode it if it exists and the model has an audio encoder
    NONE = "none"  #: ignore it
    REQUIRE = "require"  #: fail with ``no_audio_track`` if it is missing


class Source(Wire):
    """Where an item's bytes come from: exactly one of a URL or an uploaded media id (sha256 hex)."""

    url: str | None = Field(default=None, max_length=8192)
    media_id: str | None = Field(default=None, pattern=r"^[0-9a-f]{64}$")

    @model_validator(mode="after")
    def _exactly_one(self) -> Source:
        if (self.url is None) == (self.media_id is None):
            raise ValueError("exactly one of url, media_id")
        return self


class ItemOptions(Wire):
    """Options that change an item's output. ``None`` means the encoder's own default.

    ``min_pixels``/``max_pixels`` bound height*width after resizing; ``fps`` is the number of
    frames sampled per second of video; ``min_frames``/``max_frames`` bound the sampled frame count.
    """

    min_pixels: int | None = Field(default=None, ge=1, le=1 << 28)
    max_pixels: int | None = Field(default=None, ge=1, le=1 << 28)
    fps: float | None = Field(default=None, gt=0, le=120)
    min_frames: int | None = Field(default=None, ge=1, le=4096)
    max_frames: int | None = Field(default=None, ge=1, le=4096)
    audio_track: AudioTrackMode = AudioTrackMode.AUTO


class Item(Wire):
    """One media item of a job, as admitted: its index, type, source and options."""

    index: int = Field(ge=0)
    modality: Modality
    source: Source
    options: ItemOptions = ItemOptions()


class BlobRef(Wire):
    """A file in the blob directory, by its plain name. ``nbytes`` is its exact size in bytes."""

    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,127}$")
    nbytes: int = Field(ge=0)


class RawImage(Wire):
    """A decoded image: uint8 RGB, row-major [height, width, 3], upright, transparency on white.

    ``original_size`` is (width, height) as stored in the file, before its EXIF orientation.
    """

    kind: Literal["image"] = "image"
    blob: BlobRef
    height: int = Field(ge=1)
    width: int = Field(ge=1)
    original_size: tuple[int, int]
    source_frames: int = 1


class RawFrames(Wire):
    """Sampled video frames: uint8 RGB [frames, height, width, 3], rotation applied.

    ``timestamps`` are presentation times in seconds from the first frame of the file, one per frame.
    ``partial`` means that the file broke off and its intact part was kept.
    """

    kind: Literal["frames"] = "frames"
    blob: BlobRef
    frames: int = Field(ge=1)
    height: int = Field(ge=1)
    width: int = Field(ge=1)
    original_size: tuple[int, int]
    timestamps: tuple[float, ...]
    duration: float = Field(ge=0)
    sampled_fps: float = Field(gt=0)
    source_frames: int = Field(ge=1)
    partial: bool = False


class RawAudio(Wire):
    """Decoded audio: float32 mono PCM [samples] at ``sample_rate`` Hz, the mean of all channels.

    ``partial`` means that the file broke off and its intact part was kept.
    """

    kind: Literal["audio"] = "audio"
    blob: BlobRef
    samples: int = Field(ge=1)
    sample_rate: int = Field(ge=1)
    partial: bool = False


RawMedia = Annotated[RawImage | RawFrames | RawAudio, Field(discriminator="kind")]
