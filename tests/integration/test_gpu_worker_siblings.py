"""``python -m gpu_worker --devices cpu:2``: two workers, both served, and neither outlives the other."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from epd.contracts.job import State
from gpu_worker.siblings import exit_status
from tests.integration.encode_kit import EncodeLine
from tests.integration.line_kit import opened
from tests.integration.transport_kit import wait_until

SIZE = {"width": 256, "layers": 5}
ITEMS = 60


@pytest.fixture
def line(tmp_path: Path) -> Iterator[EncodeLine]:
    with opened(EncodeLine, tmp_path, **SIZE) as line:
        yield line


def start_two(line: EncodeLine) -> tuple[subprocess.Popen[bytes], list[psutil.Process]]:
    parent = line.start("--devices", "cpu:2", ready=False, EPD_WORKER_PREFETCH="8", EPD_MAX_BATCH_ITEMS="4")
    wait_until(lambda: len(ready_pids(line)) == 2, within=90, what="two workers ready")
    workers = psutil.Process(parent.pid).children()
    assert {worker.pid for worker in workers} == ready_pids(line)
    return parent, workers


def ready_pids(line: EncodeLine) -> set[int]:
    return {beat.pid for beat in line.store.heartbeats.alive() if beat.ready}


def gone(workers: list[psutil.Process]) -> bool:
    return not any(one.is_running() and one.status() != psutil.STATUS_ZOMBIE for one in workers)


def encoded_by(line: EncodeLine) -> dict[str, float]:
    return {
        beat.name.partition("@")[0]: beat.counters.get("encode_items/eye", 0.0)
        for beat in line.store.heartbeats.alive()
    }


def test_both_serve_and_a_signal_ends_both_kindly(line: EncodeLine) -> None:
    parent, workers = start_two(line)
    messages = line.messages(ITEMS)
    line.publish(messages)
    view = line.wait_done(messages[0].job_id, within=90)
    assert {part.state for part in view.parts.values()} == {State.DONE}
    wait_until(lambda: sum(encoded_by(line).values()) == ITEMS, within=20, what="the counters tell")
    items = encoded_by(line)
    assert set(items) == {"gpu0", "gpu1"}
    assert min(items.values()) > 0
    for beat in line.store.heartbeats.alive():
        assert 0 < beat.counters["encoder_memory_bytes/eye"] < beat.counters["worker_memory_bytes"]
    assert line.end(parent, signal.SIGTERM) == 0
    assert gone(workers)
    assert line.broker.held() == 0


def test_a_killed_worker_ends_the_other_and_the_parent_says_so(line: EncodeLine) -> None:
    parent, workers = start_two(line)
    messages = line.messages(ITEMS)
    line.publish(messages)
    wait_until(lambda: line.states(messages[0].job_id)[State.DONE] >= 4, within=60, what="some are done")
    workers[0].kill()
    assert parent.wait(60) == 128 + signal.SIGKILL
    assert gone(workers)
    line.start()
    view = line.wait_done(messages[0].job_id, within=90)
    assert {part.state for part in view.parts.values()} == {State.DONE}


@pytest.mark.skipif(sys.platform != "linux", reason="prctl is Linux's")
def test_a_killed_parent_leaves_no_orphan(line: EncodeLine) -> None:
    parent, workers = start_two(line)
    assert line.end(parent, signal.SIGKILL) == -signal.SIGKILL
    wait_until(lambda: gone(workers), within=10, what="no orphan")


def test_a_start_that_fails_ends_with_its_status(line: EncodeLine) -> None:
    (line.folder / "epd.toml").write_text("default_model = 3")
    parent = line.start("--devices", "cpu:2", ready=False)
    assert parent.wait(60) == 78


_RUN = "import sys; from gpu_worker.siblings import Siblings; sys.exit(Siblings({commands!r}, 2).run())"


def test_a_worker_that_does_not_end_is_killed(tmp_path: Path) -> None:
    deaf = "import signal, sys, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); "
    commands = [[sys.executable, "-c", f"{deaf}open({str(tmp_path / str(i))!r}, 'w'); time.sleep(60)"]
                for i in range(2)]  # fmt: skip
    with subprocess.Popen([sys.executable, "-c", _RUN.format(commands=commands)]) as parent:
        wait_until(lambda: len(os.listdir(tmp_path)) == 2, within=20, what="both run")
        workers = psutil.Process(parent.pid).children()
        parent.send_signal(signal.SIGTERM)
        assert parent.wait(20) == 128 + signal.SIGKILL
    assert gone(workers)


def test_statuses() -> None:
    assert [exit_status(code) for code in (0, 70, -9)] == [0, 70, 137]
