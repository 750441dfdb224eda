"""Decode-side metadata and embedding references: what an engine needs of an item without any media byte."""

from __future__ import annotations

from pydantic import Field, model_validator

from epd.contracts.media import Modality
from epd.contracts.wire import Wire


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
    """What Decode needs of one embedding (DESIGN 4).

    ``grid_thw`` is (t, h, w) in patches before merging; ``video_timestamps`` are seconds, one a sampled
    frame; ``second_per_grid_ts`` is seconds between temporal grid steps; ``audio_feature_lengths`` are
    valid mel frames, one a window of the family (30 s; for Qwen2.5-Omni the whole sound);
    ``original_size`` is (width, height). ``audio`` is set on a video's frames only and tells whether the
    file has an audio track. ``weights_digest`` is that of the encoder's card: the model revision.
    ``source_bytes`` is the size of the media file.
    """

    embedding_key: str
    content_digest: str
    modality: Modality
    encoder: str
    dtype: str
    token_count: int = Field(ge=1)
    hidden: int = Field(ge=1)
    grid_thw: tuple[int, int, int] | None = None
    merge_size: int | None = None
    prefix_tokens: int = 0
    second_per_grid_ts: float | None = None
    video_timestamps: tuple[float, ...] | None = None
    audio_feature_lengths: tuple[int, ...] | None = None
    audio_seconds: float | None = None
    deepstack_levels: int = 0
    original_size: tuple[int, int] | None = None
    source_frames: int | None = None
    partial: bool = False
    audio: AudioTrackInfo | None = None
    weights_digest: str | None = None
    source_bytes: int | None = None

    @model_validator(mode="after")
    def _grid_gives_the_count(self) -> Metadata:
        expected = self.tokens_of_grid()
        if expected is not None and expected != self.token_count:
            raise ValueError(f"grid {self.grid_thw} gives {expected} tokens, not {self.token_count}")
        return self

    def tokens_of_grid(self) -> int | None:
        """Rows that the grid says: t * (h*w / merge_size^2 + prefix_tokens); None without a grid."""
        if self.grid_thw is None:
            return None
        t, h, w = self.grid_thw
        merge = self.merge_size or 1
        return t * (h * w // (merge * merge) + self.prefix_tokens)


class Entry(Wire):
    """An index entry of the embedding cache. Reference and metadata live and die together."""

    ref: EmbeddingRef
    metadata: Metadata

    @model_validator(mode="after")
    def _rows_match(self) -> Entry:
        if self.ref.tokens != self.metadata.token_count:
            raise ValueError(f"{self.ref.tokens} rows, metadata says {self.metadata.token_count}")
        return self
