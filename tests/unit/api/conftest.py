"""Applications under test."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from api.services import Services
from tests.store_kit import Databases, Stores
from tests.unit.api.rest_kit import MakeRest, Rest, running


@pytest.fixture
def make_rest(tmp_path: Path, stores: Stores) -> Iterator[MakeRest]:
    """Start applications with the given settings."""
    with ExitStack() as stack:
        yield lambda **overrides: stack.enter_context(running(tmp_path, stores, **overrides))


@pytest.fixture
def rest(make_rest: MakeRest) -> Rest:
    return make_rest()


@pytest.fixture(scope="module")
def quiet(tmp_path_factory: pytest.TempPathFactory, databases: Databases) -> Iterator[Rest]:
    """An application shared by tests that leave nothing behind."""
    folder = tmp_path_factory.mktemp("quiet")
    with databases.empty() as stores, running(folder, stores) as rest:
        yield rest


@pytest.fixture
def forbid_threads(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Make every later request that takes a thread fail."""

    async def fail(*_: object, **__: object) -> None:
        raise AssertionError("a request that the cache answers took a thread")

    return lambda: monkeypatch.setattr(Services, "call", fail)
