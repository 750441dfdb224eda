"""A batch that hangs: the worker says so and ends, its items are tried again, a bad one ends alone."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from epd.contracts.job import FINAL_STATES, State
from epd.contracts.messages import EncodeMessage
from tests.integration.encode_kit import EncodeLine
from tests.integration.line_kit import opened
from tests.integration.transport_kit import wait_until

APP = Path(__file__).parent / "apps" / "hanging_gpu_worker.py"
LIMIT_S = 2
FROZEN_LIMIT_S = 6
HUNG, STUCK = 75, 1


@pytest.fixture(scope="module")
def line(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EncodeLine]:
    with opened(EncodeLine, tmp_path_factory.mktemp("hang")) as line:
        yield line


def start(line: EncodeLine, **environment: str) -> subprocess.Popen[bytes]:
    """The hanging worker, as a supervisor would start it."""
    pool = {"CELERY_CUSTOM_WORKER_POOL": "gpu_worker.pool.batch_pool:BatchPool"}
    environment = {"EPD_BATCH_TIMEOUT": str(LIMIT_S), **pool, **environment}
    with line.log.open("ab") as log:
        process = subprocess.Popen(
            [sys.executable, str(APP)], cwd=line.folder, stdout=log, stderr=log, start_new_session=True,
            env=line.process_environment(**environment),
        )  # fmt: skip
    line.processes.append(process)
    return process


def ready(line: EncodeLine, **environment: str) -> subprocess.Popen[bytes]:
    process = start(line, **environment)
    wait_until(lambda: line.is_ready(process.pid), within=60, what="worker ready")
    return process


def mark(line: EncodeLine, message: EncodeMessage) -> None:
    """Make this image one that hangs."""
    with line.store.blobs.path(message.raw.blob).open("r+b") as file:
        file.write(bytes([1, 2, 3]))


def test_a_batch_that_always_hangs_fails_alone_as_worker_crashed(line: EncodeLine) -> None:
    process = ready(line)
    messages = line.messages(6)
    mark(line, messages[3])
    line.publish(messages)
    wait_until(lambda: line.counters().get("encode_hangs", 0) == 1, within=20, what="the counter of hangs")
    assert process.wait(10) == HUNG
    assert not line.is_ready(process.pid)
    statuses = [HUNG]
    process = start(line)
    job, end = messages[0].job_id, time.monotonic() + 90
    while not all(part.state in FINAL_STATES for part in line.view(job).parts.values()):
        assert time.monotonic() < end, line.view(job).parts
        if process.poll() is not None:
            statuses.append(process.returncode)
            process = start(line)
        time.sleep(0.05)
    assert statuses == [HUNG] * 3
    parts = line.view(job).parts
    failed = parts.pop("3.image")
    assert failed.error is not None
    assert failed.error.code == "worker_crashed"
    assert {part.state for part in parts.values()} == {State.DONE}
    line.wait_settled()
    assert line.end(process) == 0
    text = line.log.read_text()
    assert "has not ended after" in text
    assert "hanging_gpu_worker.py" in text, "the traceback shows where it hangs"


def test_a_hang_that_keeps_the_interpreters_lock_ends_too(line: EncodeLine) -> None:
    process = ready(line, HANG="gil")
    messages = line.messages(2)
    mark(line, messages[0])
    line.publish(messages)
    assert process.wait(LIMIT_S * 3 + 10) == STUCK
    assert "Timeout (" in line.log.read_text()
    line.start(EPD_BATCH_TIMEOUT=str(FROZEN_LIMIT_S))  # an ordinary worker: nothing was lost
    line.wait_done(messages[0].job_id)
    line.wait_settled()


def test_a_frozen_worker_is_not_taken_for_a_hung_one(line: EncodeLine) -> None:
    process = line.worker(EPD_BATCH_TIMEOUT=str(FROZEN_LIMIT_S))
    process.send_signal(signal.SIGSTOP)
    time.sleep(4)  # longer than the heartbeat may be silent; more than half of the limit
    process.send_signal(signal.SIGCONT)
    messages = line.messages(4)
    line.publish(messages)
    line.wait_done(messages[0].job_id)
    assert process.poll() is None
