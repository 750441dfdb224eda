"""Fixtures: a bench with a store, a loopback web site, and two short videos."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.store_kit import Stores
from tests.unit.tasks.flow_kit import Bench, MakeBench, make_videos
from tests.unit.tasks.page_site import Site, page_site


@pytest.fixture
def make_bench(tmp_path: Path, stores: Stores) -> MakeBench:
    """Make a bench with the given settings."""

    def make(**settings: Any) -> Bench:
        return Bench(tmp_path, stores, **settings)

    return make


@pytest.fixture
def bench(make_bench: MakeBench) -> Bench:
    return make_bench()


@pytest.fixture
def site() -> Iterator[Site]:
    with page_site() as server:
        yield server


@pytest.fixture(scope="session")
def videos(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    return make_videos(tmp_path_factory.mktemp("videos"))
