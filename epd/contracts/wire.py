"""The base class of every value that crosses a process boundary: frozen, typed, unknown fields refused."""

from __future__ import annotations

from typing import Any, Self

from pydantic import BaseModel, ConfigDict


class Wire(BaseModel):
    """A frozen value that travels as JSON. Unknown fields are an error; they are never dropped."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    def to_json(self) -> str:
        """JSON text without the fields that are None. Tags and the schema version always travel."""
        return self.model_dump_json(exclude_none=True)

    def to_document(self) -> dict[str, Any]:
        """The same as ``to_json``, as plain dicts and lists, for a carrier that writes the JSON itself."""
        return self.model_dump(mode="json", exclude_none=True)

    @classmethod
    def from_json(cls, text: str | bytes) -> Self:
        """Parse and validate; raises ``pydantic.ValidationError``."""
        return cls.model_validate_json(text)
