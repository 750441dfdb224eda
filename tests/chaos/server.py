"""A Redis server of our own that can be ended, wiped and started again on the same port."""

from __future__ import annotations

import shutil
import signal
import socket
import subprocess
import time
from pathlib import Path
from typing import Any

import redis

from epd.processes import die_with_parent
from tests.server_under_test import server_binary

_START_LIMIT = 20.0
_STOP_LIMIT = 10.0


class Server:
    """Keeps its data across a restart (append-only file), as the server of ``epd up`` does."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port: int = probe.getsockname()[1]
        # redis-py types an answer by what the server could send with any settings, so all is Any here.
        self.client: Any = redis.Redis(port=self.port, socket_timeout=5, decode_responses=True)
        self._process: subprocess.Popen[bytes] | None = None

    def url(self, database: int) -> str:
        """The URL of one of its databases."""
        return f"redis://127.0.0.1:{self.port}/{database}"

    def start(self) -> None:
        """Start it and wait until it answers with its data loaded; raises ``TimeoutError``."""
        self.folder.mkdir(parents=True, exist_ok=True)
        argv = [server_binary(), "--port", str(self.port), "--bind", "127.0.0.1", "--dir", str(self.folder)]
        argv += ["--save", "", "--appendonly", "yes", "--appendfsync", "everysec"]
        argv += ["--maxmemory-policy", "noeviction", "--logfile", str(self.folder.with_suffix(".log"))]
        self._process = subprocess.Popen(argv, preexec_fn=die_with_parent)  # noqa: PLW1509  only calls prctl
        end = time.monotonic() + _START_LIMIT
        while not self._answers():
            if time.monotonic() > end:
                raise TimeoutError(f"{argv[0]} does not answer on port {self.port}")
            time.sleep(0.02)

    def _answers(self) -> bool:
        try:
            return bool(self.client.ping())
        except redis.RedisError:
            return False

    def end(self, number: signal.Signals = signal.SIGKILL) -> None:
        """End it with a signal and wait for its end."""
        if self._process is not None:
            self._process.send_signal(number)
            self._process.wait(_STOP_LIMIT)
            self._process = None

    def wipe(self) -> None:
        """Forget all that it kept; call it between ``end`` and ``start``."""
        shutil.rmtree(self.folder, ignore_errors=True)

    def close(self) -> None:
        """End it for good."""
        self.client.close()
        self.end()
