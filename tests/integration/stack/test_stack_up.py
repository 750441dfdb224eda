"""``epd up`` as a user runs it: what it prints, what it tells of a dead part, what it leaves behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from test_stack_kill import wait_until

from epd.client import Client
from epd.stack.parts import free_port

_CONFIG = """
default_model = "tiny"
[encoders.tiny]
family = "dinov2"
path = "{made}/tiny"
[models.tiny]
image = "tiny"
"""


class Up:
    """A running ``epd up`` with its output in a file."""

    def __init__(self, folder: Path, checkpoints: Path) -> None:
        (folder / "epd.toml").write_text(_CONFIG.format(made=checkpoints), encoding="utf-8")
        self.port = free_port()
        self.output = folder / "output"
        self.env_file = folder / "data" / "env"
        own = {"EPD_CONFIG": str(folder / "epd.toml"), "EPD_API_PORT": str(self.port)}
        own |= {"EPD_TORCH_THREADS": "1"}
        command = [
            sys.executable,
            "-m",
            "epd.cli.main",
            "up",
            "--no-flower",
            "--data-dir",
            str(folder / "data"),
        ]
        with self.output.open("wb") as output:
            self.process = subprocess.Popen(command, env={**os.environ, **own}, stdout=output, stderr=output)

    def says(self, text: str) -> bool:
        return text in self.output.read_text(encoding="utf-8")


@pytest.fixture
def up(tmp_path: Path, checkpoints: Path) -> Iterator[Up]:
    running = Up(tmp_path, checkpoints)
    yield running
    running.process.terminate()  # not killed: a test that failed leaves nothing in /dev/shm either
    running.process.wait(20)


@pytest.mark.timeout(180)
def test_up_tells_of_a_part_that_died_and_leaves_no_env_file(up: Up) -> None:
    wait_until(lambda: up.says("Ctrl-C stops all of it."), "ready", 120)
    text = up.env_file.read_text(encoding="utf-8")
    assert f"EPD_API_PORT={up.port}" in text
    assert f"source {up.env_file} && celery -A tasks worker" in up.output.read_text(encoding="utf-8")
    with Client(f"http://127.0.0.1:{up.port}") as client:
        pid = next(worker.pid for worker in client.status().workers if worker.kind == "fetch")
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: up.says("media died and was restarted"), "restarted", 60)

    up.process.send_signal(signal.SIGINT)
    assert up.process.wait(15) == 0
    assert up.says("stopped")
    assert not up.env_file.exists(), "a later shell would source the settings of a stack that is gone"
