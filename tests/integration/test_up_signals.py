"""``epd up`` ends cleanly by each signal that asks for its end, also while it still starts."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from epd.stack.parts import _media_root, free_port
from tests.integration.transport_kit import ROOT, wait_until


def media_dirs(pid: int) -> list[Path]:
    return list(_media_root().glob(f"epd-{pid}-*"))


@pytest.fixture
def starting(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-m", "epd.cli.main", "up", "--no-flower", "--data-dir", str(tmp_path)]
    environment = {**os.environ, "EPD_API_PORT": str(free_port())}
    process = subprocess.Popen(command, env=environment, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    wait_until((tmp_path / "logs/redis.log").exists, within=30, what="the first part started")
    yield process
    with suppress(ProcessLookupError):
        process.kill()
    process.wait(10)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_a_stack_that_starts_and_leaves_nothing(
    starting: subprocess.Popen[str], number: signal.Signals
) -> None:
    assert media_dirs(starting.pid)
    starting.send_signal(number)
    out, _ = starting.communicate(timeout=12)
    assert out.strip().endswith("stopped")
    assert starting.returncode == 0
    assert media_dirs(starting.pid) == []
