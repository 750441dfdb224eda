"""The handoff from Prefill to Decode: where each embedding belongs in a prompt, and its metadata.

Prefill puts a ``HandoffRequest`` (keys and positions), the server adds the metadata of each key, and Decode
reads a ``Handoff``. Neither contains media, pixel or embedding bytes. The contract is docs/handoff.md.
"""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Annotated

import orjson
from pydantic import Field, JsonValue, field_validator, model_validator

from epd.contracts.embedding import MAX_TOKENS, Metadata
from epd.contracts.wire import Wire

#: A request id: the characters that engines use, safe in a path (no ``..``) and in a key.
REQUEST_ID = r"^[A-Za-z0-9_][A-Za-z0-9._:-]{0,127}$"
MAX_ITEMS = 256
#: The most runs of placeholders in one item. Qwen3-VL has one per frame; its published limit is 768 frames.
MAX_SPANS = 4096
#: The largest ``extra``, in bytes of JSON.
MAX_EXTRA_BYTES = 4096

#: A position in the prompt or a number of tokens.
Tokens = Annotated[int, Field(ge=0, le=MAX_TOKENS)]
#: A run of placeholder tokens: its offset in the prompt and its length, both in tokens.
Span = tuple[Tokens, Tokens]


class Placed(Wire):
    """Where an item's placeholder tokens are in the prompt; the i-th placeholder takes the i-th row.

    ``offset`` is the position of the first placeholder and ``length`` is their number, in tokens. ``spans``
    is given where they are not one run (Qwen3-VL puts a timestamp before each group of frames, Omni
    interleaves audio and video): the offset and length of each run, in order. An item of length 0 has no
    placeholder: Whisper's decoder reads it by cross-attention.
    """

    offset: Tokens
    length: Tokens
    spans: tuple[Span, ...] | None = Field(default=None, min_length=2, max_length=MAX_SPANS)

    @model_validator(mode="after")
    def _spans_are_the_length(self) -> Placed:
        if self.spans is None:
            return self
        if self.spans[0][0] != self.offset or sum(length for _, length in self.spans) != self.length:
            raise ValueError("spans do not begin at offset, or are not length tokens together")
        if any(length < 1 for _, length in self.spans):
            raise ValueError("a span is empty")
        if any(offset + length > after for (offset, length), (after, _) in pairwise(self.spans)):
            raise ValueError("spans overlap, or are not in the order of the prompt")
        return self

    @property
    def runs(self) -> tuple[Span, ...]:
        """Every run of placeholders; none for a length of 0."""
        if self.spans is not None:
            return self.spans
        return ((self.offset, self.length),) if self.length else ()

    @property
    def end(self) -> int:
        """The position after the last placeholder."""
        return sum(self.spans[-1]) if self.spans else self.offset + self.length


class Placement(Placed):
    """One item of a prompt, as Prefill sends it.

    ``metadata`` is optional. It is used only when the index has lost its own, because the embedding was
    evicted after it was encoded.
    """

    key: str = Field(pattern=r"^[0-9a-f]{64}$")
    metadata: Metadata | None = None

    @model_validator(mode="after")
    def _metadata_is_of_the_key(self) -> Placement:
        if self.metadata is not None and self.metadata.embedding_key != self.key:
            raise ValueError("metadata is of another key")
        return self


class HandoffItem(Placed):
    """One item of a prompt, as Decode reads it.

    ``length`` is the token count of the metadata, or that without the prefix rows that some engines drop
    (a class token), or 0.
    """

    metadata: Metadata

    @property
    def key(self) -> str:
        """The embedding's key."""
        return self.metadata.embedding_key

    @model_validator(mode="after")
    def _rows_match(self) -> HandoffItem:
        rows = self.metadata.token_count
        bare = rows - (self.metadata.grid_thw or (1,))[0] * self.metadata.prefix_tokens
        if self.length not in (0, rows, bare):
            dropped = f"{bare} (without class tokens), " if 0 < bare < rows else ""
            allowed = f"length may be {dropped}{rows} or 0"
            raise ValueError(f"{self.length} placeholders at {self.offset}, {rows} rows: {allowed}")
        return self


class _Prompt(Wire):
    """The fields that both sides have in common.

    ``mrope_position_delta`` is what Decode adds to the index of a token to get its rotary position (Qwen-VL).
    ``prompt_tokens`` is the length of the whole prompt, placeholders included. ``extra`` belongs to the
    engine: JSON of at most 4096 bytes that no sampling depends on.
    """

    mrope_position_delta: int | None = Field(default=None, ge=-MAX_TOKENS, le=MAX_TOKENS)
    prompt_tokens: int | None = Field(default=None, ge=1, le=MAX_TOKENS)
    extra: dict[str, JsonValue] = Field(default_factory=dict)

    @field_validator("extra")
    @classmethod
    def _extra_is_small(cls, extra: dict[str, JsonValue]) -> dict[str, JsonValue]:
        try:
            nbytes = len(orjson.dumps(extra))
        except (TypeError, RecursionError) as error:  # integers over 64 bits, lone surrogates, deep nesting
            raise ValueError("not JSON that every library can read") from error
        if nbytes > MAX_EXTRA_BYTES:
            raise ValueError(f"over {MAX_EXTRA_BYTES} bytes")
        try:
            json.dumps(extra, allow_nan=False)  # orjson writes NaN as null, and pydantic reads it
        except ValueError as error:
            raise ValueError(
                "not JSON: a number that no 64-bit float holds (NaN, Infinity, 1e400)"
            ) from error
        return extra


class HandoffRequest(_Prompt):
    """The body of ``PUT /v1/handoff/{request_id}``: items in the order of the prompt."""

    items: tuple[Placement, ...] = Field(max_length=MAX_ITEMS)

    @model_validator(mode="after")
    def _items_fit_in_the_prompt(self) -> HandoffRequest:
        firsts = [item.offset for item in self.items]
        if firsts != sorted(firsts):
            raise ValueError("items are not in the order of the prompt")
        runs = sorted(run for item in self.items for run in item.runs)
        if any(offset + length > after for (offset, length), (after, _) in pairwise(runs)):
            raise ValueError("placeholders of two items overlap")
        if self.prompt_tokens is not None and any(item.end > self.prompt_tokens for item in self.items):
            raise ValueError("a placeholder is behind the end of the prompt")
        return self


class Handoff(_Prompt):
    """What Decode reads: every item with its metadata, in the order of the prompt."""

    request_id: str = Field(pattern=REQUEST_ID)
    items: tuple[HandoffItem, ...]


class HandoffReceipt(Wire):
    """The answer to a ``PUT``: how many bytes Decode will read, and for how many seconds they are kept."""

    request_id: str
    nbytes: int
    ttl: float


class Slice(Wire):
    """Rows [start, stop) of an embedding, one row per token; without ``stop``, up to the last row."""

    key: str = Field(pattern=r"^[0-9a-f]{64}$")
    start: int = Field(default=0, ge=0, le=MAX_TOKENS)
    stop: int | None = Field(default=None, ge=1, le=MAX_TOKENS)

    @model_validator(mode="after")
    def _is_not_empty(self) -> Slice:
        if self.stop is not None and self.stop <= self.start:
            raise ValueError(f"rows {self.start}:{self.stop} are none")
        return self


def handoff_topic(request_id: str) -> str:
    """The topic that announces a handoff, in the same channel as the ids of jobs."""
    return f"handoff:{request_id}"
