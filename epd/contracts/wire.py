"""The base of all that crosses a process: frozen, typed, unknown fields refused."""

from __future__ import annotations

from typing import Self

from pydantic import BaseModel, ConfigDict


class Wire(BaseModel):
    """A frozen value that travels as JSON. Unknown fields are an error, never dropped."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    def to_json(self) -> str:
        """JSON text without fields that hold their default."""
        return self.model_dump_json(exclude_defaults=True)

    @classmethod
    def from_json(cls, text: str | bytes) -> Self:
        """Parse and check; raises ``pydantic.ValidationError``."""
        return cls.model_validate_json(text)
