"""A broker and Celery workers as real processes, for the tests of the transport."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import redis

from tests.server_under_test import server_binary

ROOT = Path(__file__).parents[2]
APPS = Path(__file__).parent / "apps"
RUNS = "test:runs"
POISONED = "test:poisoned"


def wait_until(condition: Callable[[], object], *, within: float, what: str = "condition") -> float:
    """Poll until ``condition`` holds; returns the seconds it took, fails after ``within``."""
    start = time.monotonic()
    while time.monotonic() - start < within:
        try:
            if condition():
                return time.monotonic() - start
        except redis.ConnectionError:
            pass
        time.sleep(0.02)
    raise AssertionError(f"{what}: not within {within} s")


class Broker:
    """One Redis server in a folder of its own; ``stop`` and ``start`` keep port and folder."""

    def __init__(self, folder: Path, *, persistent: bool = False) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self.folder = folder
        self.persistent = persistent
        self.url = f"redis://127.0.0.1:{self.port}/0"
        self.client = redis.Redis(port=self.port, socket_timeout=5, decode_responses=True)

    def start(self) -> None:
        keep = (
            ["--appendonly", "yes", "--appendfsync", "always"] if self.persistent else ["--appendonly", "no"]
        )
        where = ["--port", str(self.port), "--bind", "127.0.0.1", "--dir", str(self.folder), "--save", ""]
        self.process = subprocess.Popen(
            [server_binary(), *where, *keep, "--logfile", str(self.folder / "server.log")]
        )
        wait_until(self.client.ping, within=10, what="server up")

    def stop(self) -> None:
        self.process.kill()
        self.process.wait(10)

    def close(self) -> None:
        self.client.close()
        self.stop()

    def runs(self) -> Counter[str]:
        """How often each name was run."""
        return Counter(line.split()[0] for line in self.client.lrange(RUNS, 0, -1))

    def held(self) -> int:
        """Messages recorded as unacked, of all sessions."""
        return sum(self.client.hlen(key) for key in self.client.scan_iter("epd:unacked:*"))


class Worker:
    """One Celery worker in a process group of its own."""

    def __init__(self, broker: Broker, folder: Path, **options: str) -> None:
        self.broker = broker
        self.folder = folder
        self.options = {"-P": "threads", "-c": "4", "-Q": "one,two", **options}
        self.start()

    def start(self) -> None:
        environment = {
            **os.environ, "TRANSPORT_TEST_URL": self.broker.url, "PYTHONPATH": f"{ROOT}:{APPS}",
            "TRANSPORT_TEST_PREFETCH": self.options.get("prefetch", "4"),
            "TRANSPORT_TEST_DELIVERIES": self.options.get("deliveries", "3"),
        }  # fmt: skip
        flags = [
            part for name, value in self.options.items() if name.startswith("-") for part in (name, value)
        ]
        light = ["--without-mingle", "--without-gossip", "-l", "INFO"]
        with (self.folder / "worker.log").open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "celery", "-A", "transport_app", "worker", *light, *flags],
                env=environment, stdout=log, stderr=log, start_new_session=True, cwd=self.folder,
            )  # fmt: skip

    def signal(self, number: int) -> None:
        os.killpg(self.process.pid, number)

    def kill(self) -> None:
        self.signal(signal.SIGKILL)
        self.process.wait(10)

    def is_dead(self) -> bool:
        return self.process.poll() is not None

    def close(self) -> None:
        if self.process.poll() is None:
            self.kill()


@pytest.fixture(name="broker")
def broker_fixture(tmp_path: Path) -> Iterator[Broker]:
    """A fresh server that keeps nothing. Import it by this name to use ``broker``."""
    broker = Broker(tmp_path)
    broker.start()
    yield broker
    broker.close()


@pytest.fixture(name="hire")
def hire_fixture(broker: Broker, tmp_path: Path) -> Iterator[Callable[..., Worker]]:
    """Starts workers on ``broker``; all are dead after the test."""
    hired: list[Worker] = []

    def hire(**options: str) -> Worker:
        hired.append(Worker(broker, tmp_path, **options))
        return hired[-1]

    yield hire
    for worker in hired:
        worker.close()
