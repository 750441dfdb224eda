"""A bounded memory of what was used lately."""

from __future__ import annotations

from collections import OrderedDict
from typing import Generic, TypeVar

Key = TypeVar("Key")
Value = TypeVar("Value")


class Recent(Generic[Key, Value]):
    """Values by key; beyond ``limit`` the one that was used least recently goes. For one thread."""

    def __init__(self, limit: int) -> None:
        """Nothing is kept yet."""
        self._limit = limit
        self._values: OrderedDict[Key, Value] = OrderedDict()

    def get(self, key: Key) -> Value | None:
        """The value of a key, which counts as used."""
        value = self._values.get(key)
        if value is not None:
            self._values.move_to_end(key)
        return value

    def put(self, key: Key, value: Value) -> None:
        """Keep a value."""
        self._values[key] = value
        self._values.move_to_end(key)
        if len(self._values) > self._limit:
            self._values.popitem(last=False)

    def forget(self, key: Key) -> None:
        """Keep it no longer."""
        self._values.pop(key, None)

    def __len__(self) -> int:
        """How many are kept."""
        return len(self._values)
