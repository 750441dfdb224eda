"""Fixtures: pools of decode children."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.unit.workers.children_kit import MakePool
from workers.decode.children import DecodeChildren


@pytest.fixture(scope="module")
def pool() -> Iterator[DecodeChildren]:
    children = DecodeChildren(2)
    yield children
    children.close()


@pytest.fixture
def make_pool() -> Iterator[MakePool]:
    """Pools with other settings, closed after the test."""
    made: list[DecodeChildren] = []

    def make(count: int = 1, **others: int) -> DecodeChildren:
        made.append(DecodeChildren(count, **others))
        return made[-1]

    yield make
    for children in made:
        children.close()
