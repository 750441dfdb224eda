"""The base of all that crosses a process: frozen, typed, unknown fields refused."""

from __future__ import annotations

from typing import Any, Self

from pydantic import BaseModel, ConfigDict


class Wire(BaseModel):
    """A frozen value that travels as JSON. Unknown fields are an error, never dropped."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    def to_json(self) -> str:
        """JSON text without the fields that are None. Tags and the schema version always travel."""
        return self.model_dump_json(exclude_none=True)

    def to_document(self) -> dict[str, Any]:
        """The same as ``to_json``, as plain dicts and lists for a carrier that makes the text itself."""
        return self.model_dump(mode="json", exclude_none=True)

    @classmethod
    def from_json(cls, text: str | bytes) -> Self:
        """Parse and check; raises ``pydantic.ValidationError``."""
        return cls.model_validate_json(text)


FETCH_QUEUE = "fetch_queue"
FETCH = "fetch"
DECODE_QUEUE = "decode_queue"
DECODE = "decode"
ENCODE_QUEUE = "encode_queue"
STAGE = "stage"
PREPROCESS = "preprocess"
FORWARD = "forward"
WRITE = "write"

#: All of them in the order of an item's life.
ALL = (FETCH_QUEUE, FETCH, DECODE_QUEUE, DECODE, ENCODE_QUEUE, STAGE, PREPROCESS, FORWARD, WRITE)
