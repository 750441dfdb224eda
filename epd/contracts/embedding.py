"""Embeddings and the encoders that make them: references, metadata for Decode, and encoder cards.

Metadata is all that a Decode engine needs of an item; no media byte is in it.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, model_validator

from epd.contracts.media import Modality
from epd.contracts.wire import Wire

#: The largest token position or count: far above any prompt, and exact in every JSON library.
MAX_TOKENS = 1 << 40
#: The longest encoder name that ``epd.toml`` may give, in characters.
MAX_ENCODER_NAME = 64

#: A count, up to the largest integer that every JSON library reads exactly (that of a 64-bit float).
Count = Annotated[int, Field(ge=0, le=1 << 53)]
#: One side of a grid, in patches or time steps.
Side = Annotated[int, Field(ge=1, le=MAX_TOKENS)]


class AudioTrackInfo(Wire):
    """Whether a video has an audio track, and its length in seconds where known."""

    present: bool
    seconds: float | None = None


class EmbeddingRef(Wire):
    """A stored embedding: ``shape`` is [tokens, hidden], ``nbytes`` the size of the tensor in bytes."""

    key: str = Field(pattern=r"^[0-9a-f]{64}$")
    shape: tuple[int, int]
    dtype: str
    nbytes: int = Field(ge=0)

    @property
    def tokens(self) -> int:
        """Rows of the embedding."""
        return self.shape[0]


class Metadata(Wire):
    """What Decode needs to know of one embedding.

    ``grid_thw`` is (t, h, w) in patches before merging. ``video_timestamps`` are in seconds, one per sampled
    frame; ``second_per_grid_ts`` is the seconds between two temporal grid steps. ``audio_feature_lengths``
    are the valid mel frames of each window (30 s; for Qwen2.5-Omni the whole audio). ``original_size`` is
    (width, height). ``audio`` is set only for a video's frames and says whether the file has an audio track.
    ``weights_digest`` is that of the encoder's card: the model revision. ``source_bytes`` is the size of the
    media file.
    """

    embedding_key: str = Field(max_length=64)
    content_digest: str = Field(max_length=128)
    modality: Modality
    encoder: str = Field(max_length=MAX_ENCODER_NAME)
    dtype: str = Field(max_length=16)
    token_count: int = Field(ge=1, le=MAX_TOKENS)
    hidden: int = Field(ge=1, le=1 << 20)
    grid_thw: tuple[Side, Side, Side] | None = None
    merge_size: int | None = Field(default=None, ge=1, le=1024)
    prefix_tokens: int = Field(default=0, ge=0, le=MAX_TOKENS)
    second_per_grid_ts: float | None = None
    video_timestamps: tuple[float, ...] | None = None
    audio_feature_lengths: tuple[Count, ...] | None = None
    audio_seconds: float | None = None
    deepstack_levels: int = Field(default=0, ge=0, le=1024)
    original_size: tuple[Count, Count] | None = None
    source_frames: Count | None = None
    partial: bool = False
    audio: AudioTrackInfo | None = None
    weights_digest: str | None = Field(default=None, max_length=128)
    source_bytes: Count | None = None

    @model_validator(mode="after")
    def _grid_gives_the_count(self) -> Metadata:
        expected = self.tokens_of_grid()
        if expected is not None and expected != self.token_count:
            raise ValueError(f"grid {self.grid_thw} gives {expected} tokens, not {self.token_count}")
        return self

    def tokens_of_grid(self) -> int | None:
        """The rows that the grid implies: t * (h*w / merge_size^2 + prefix_tokens); None without a grid."""
        if self.grid_thw is None:
            return None
        t, h, w = self.grid_thw
        merge = self.merge_size or 1
        return t * (h * w // (merge * merge) + self.prefix_tokens)


class Entry(Wire):
    """An index entry of the embedding cache. Reference and metadata are written and removed together."""

    ref: EmbeddingRef
    metadata: Metadata

    @model_validator(mode="after")
    def _rows_match(self) -> Entry:
        if self.ref.tokens != self.metadata.token_count:
            raise ValueError(f"{self.ref.tokens} rows, metadata says {self.metadata.token_count}")
        return self


class ImageRules(Wire):
    """Bounds of an image: pixels are height*width after resizing; None where the family has no bound."""

    min_pixels: int | None = None
    max_pixels: int | None = None


class VideoRules(Wire):
    """How frames are sampled: ``fps`` per second, a multiple of ``frame_multiple``, within bounds."""

    fps: float = Field(gt=0)
    min_frames: int = Field(ge=1)
    max_frames: int = Field(ge=1)
    frame_multiple: int = Field(default=1, ge=1)
    min_pixels: int | None = None
    max_pixels: int | None = None


class AudioRules(Wire):
    """The sample rate in Hz that the encoder takes, always mono."""

    sample_rate: int = Field(ge=1)


class EncoderCard(Wire):
    """One loaded encoder: its identity, its output and its rules for decoding media.

    ``hidden`` is the width of an output row; ``weights_digest`` is the sha256 hex of config and weights;
    ``preprocess_revision`` changes whenever preprocessing changes an output;
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
