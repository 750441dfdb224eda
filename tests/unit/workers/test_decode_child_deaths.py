"""Decode children that are killed, frozen or late: whose call that costs, and what is left."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from epd.contracts.errors import (
    DecodeTimeout,
    WorkerCrashed,
)
from epd.contracts.media import Modality
from tests.unit.workers.children_kit import (
    VIDEO,
    MakePool,
    is_gone,
    run,
    send,
    wait_until,
)
from workers.decode.children import DecodeChildren

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="needs prctl and /proc")

#: An ffmpeg that writes some bytes and its process id, and then hangs.
HANGING_FFMPEG = """#!/bin/sh
if [ "$1" = -version ]; then echo ffmpeg version 7.0; exit; fi
echo some bytes
echo $$ > {pid}
exec sleep 60
"""


PARENT = """
import sys
from pathlib import Path
from tests.unit.workers.children_kit import VIDEO, run
from epd.contracts.media import Modality
from workers.decode.children import DecodeChildren
children = DecodeChildren(2)
run(children, Path(sys.argv[1]))
print(*children.pids, flush=True)
run(children, Path(sys.argv[1]), VIDEO, Modality.VIDEO)
"""


@pytest.fixture
def hanging_ffmpeg(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file that names the process id of the ffmpeg that hangs."""
    folder, pid = tmp_path / "bin", tmp_path / "pid"
    folder.mkdir()
    binary = folder / "ffmpeg"
    binary.write_text(HANGING_FFMPEG.format(pid=pid))
    binary.chmod(0o755)
    monkeypatch.setenv("PATH", str(folder), prepend=os.pathsep)
    return pid


def read_pid(path: Path) -> int:
    wait_until(lambda: path.exists() and path.read_text().strip())
    return int(path.read_text())


def test_a_killed_child_is_replaced_and_its_call_tried_again(make_pool: MakePool, tmp_path: Path) -> None:
    children, kills = make_pool(tries=2), 0
    partial = tmp_path / "partial"

    def kill(nbytes: int) -> None:
        nonlocal kills
        if kills < most:
            kills += 1
            partial.write_bytes(b"written by an ffmpeg that still dies")
            (tmp_path / "a").unlink(missing_ok=True)
            (tmp_path / "a").hardlink_to(partial)
            send(children, signal.SIGKILL)

    most = 1
    assert run(children, tmp_path / "a", hold=kill).blob.nbytes == (tmp_path / "a").stat().st_size
    assert partial.read_bytes().startswith(b"written")
    most, kills = 2, 0
    with pytest.raises(WorkerCrashed):
        run(children, tmp_path / "b", hold=kill)
    assert kills == 2
    assert not (tmp_path / "b").exists()
    assert run(children, tmp_path / "b")


def test_a_child_that_dies_before_it_reads_the_work_costs_no_try(make_pool: MakePool, tmp_path: Path) -> None:
    children = make_pool(tries=1)
    run(children, tmp_path / "a")
    send(children, signal.SIGKILL)
    assert run(children, tmp_path / "b")
    send(children, signal.SIGSTOP)
    with ThreadPoolExecutor(1) as threads:
        call = threads.submit(run, children, tmp_path / "c")
        wait_until(lambda: children.idle == 0)
        time.sleep(0.1)  # until the request is in the pipe; the outcome is the same if it is not
        send(children, signal.SIGKILL)
        assert call.result(30)


def test_a_child_that_dies_without_work_is_replaced(pool: DecodeChildren, tmp_path: Path) -> None:
    run(pool, tmp_path / "a")
    old = pool.pids
    send(pool, signal.SIGKILL)
    wait_until(lambda: len(pool.pids) == 2 and not {*pool.pids} & {*old})
    assert run(pool, tmp_path / "b")


def test_a_frozen_child_is_killed_in_time(make_pool: MakePool, tmp_path: Path) -> None:
    children = make_pool()
    run(children, tmp_path / "a")
    frozen, began = children.pids, time.monotonic()
    with pytest.raises(DecodeTimeout):
        run(children, tmp_path / "b", hold=lambda _: send(children, signal.SIGSTOP), timeout=0.3)
    assert time.monotonic() - began < 5
    assert all(map(is_gone, frozen))
    assert not (tmp_path / "b").exists()


def test_no_ffmpeg_is_left_after_the_time_limit(
    make_pool: MakePool, tmp_path: Path, hanging_ffmpeg: Path
) -> None:
    children = make_pool()
    with pytest.raises(DecodeTimeout):
        run(children, tmp_path / "blob", VIDEO, Modality.VIDEO, timeout=1.5)
    wait_until(lambda: is_gone(read_pid(hanging_ffmpeg)), within=5)
    assert not (tmp_path / "blob").exists()


def test_children_and_their_ffmpeg_die_with_a_killed_worker(tmp_path: Path, hanging_ffmpeg: Path) -> None:
    command = [sys.executable, "-c", PARENT, str(tmp_path / "blob")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        pids = [*map(int, parent.stdout.readline().split()), read_pid(hanging_ffmpeg)]
        assert len(pids) == 3
        assert not any(map(is_gone, pids))
        parent.kill()
    wait_until(lambda: all(map(is_gone, pids)), within=5)


@pytest.mark.parametrize("command", ["exit 1", "exec sleep 60"])
def test_children_that_do_not_start_are_given_up(
    make_pool: MakePool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    broken = tmp_path / "python"
    broken.write_text(f"#!/bin/sh\n{command}\n")
    broken.chmod(0o755)
    monkeypatch.setattr("sys.executable", str(broken))
    monkeypatch.setattr("workers.decode.child_process._START_SECONDS", 0.3)
    with pytest.raises(WorkerCrashed):
        run(make_pool(tries=2), tmp_path / "blob")


def test_close_ends_all(make_pool: MakePool, tmp_path: Path) -> None:
    children = make_pool(2)
    run(children, tmp_path / "a")
    wait_until(lambda: len(children.pids) == 2)
    pids = children.pids
    with pytest.raises(WorkerCrashed):
        run(children, tmp_path / "a", hold=lambda _: children.close())
    wait_until(lambda: all(map(is_gone, pids)), within=5)
    assert children.pids == []
    with pytest.raises(WorkerCrashed):
        run(children, tmp_path / "a")
