"""What ``bench.footprint`` counts: the probe in a small process of its own, and the sets of its figures."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from bench.footprint import probe
from bench.footprint.__main__ import Call, figures_of

Lines = dict[str, list[str]]

_LIBRARY = """
at_import = [item for item in map(str, range(3))]

def shared():
    return sorted([2, 1], key=lambda item: -item)

def imported():
    return 1

class Body:
    value = imported()

imported()
"""

_MAIN = """
import asyncio, os, sys, threading

def waits(gate):
    gate.acquire()

def request():
    import pkg.library as library
    library.shared()

def heartbeat():
    from pkg import library
    library.shared()

async def looped():
    await asyncio.sleep(0)
    in_loop()

def in_loop(): ...
def in_thread(): ...
def in_fork(): ...
def never_in_window(): ...

def window(number):
    with open(sys.argv[1], "r+b") as file:
        file.write(bytes([number]))

gate = threading.Lock()
gate.acquire()
waiting = threading.Thread(target=waits, args=(gate,))
waiting.start()
never_in_window()
window(1)
request()
asyncio.run(looped())
thread = threading.Thread(target=in_thread)
thread.start()
thread.join()
gate.release()
waiting.join()
if (child := os.fork()) == 0:
    in_fork()
    os._exit(0)
os.waitpid(child, 0)
window(2)
heartbeat()
window(0)
never_in_window()
"""


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Lines:
    """The lines of each process of a small program that loads the probe, by its command."""
    folder = tmp_path_factory.mktemp("footprint")
    tree, calls = folder / "tree", folder / "probe"
    (tree / "pkg").mkdir(parents=True)
    (tree / "pkg/library.py").write_text(_LIBRARY, encoding="utf-8")
    (tree / "pkg/__main__.py").write_text(_MAIN, encoding="utf-8")
    (tree / "tests").mkdir()
    calls.mkdir()
    shutil.copy(probe.__file__, calls / "sitecustomize.py")
    (calls / "tree").write_text(str(tree.resolve()), encoding="utf-8")
    (calls / "window").write_bytes(b"\0")
    argv = ["env", f"PYTHONPATH={calls}", sys.executable, "-m", "pkg", str(calls / "window")]
    subprocess.run(argv, cwd=tree, check=True, timeout=60)
    texts = [file.read_text("utf-8").splitlines() for file in calls.glob("*.calls")]
    return {command.replace(str(calls), ""): lines for command, *lines in texts}


def test_functions_count_in_threads_in_the_event_loop_and_when_they_go_on(recorded: Lines) -> None:
    main = "pkg/__main__.py:"
    paths = {line for line in recorded["-m pkg /window"] if line.startswith("1\t")}
    assert paths >= {f"1\t{main}{name}" for name in ("request", "looped", "in_thread", "waits")}
    assert f"1\t{main}looped\t{main}in_loop" in paths


def test_a_fork_has_a_file_of_its_own(recorded: Lines) -> None:
    assert recorded["-m pkg /window (fork)"] == ["1\tpkg/__main__.py:in_fork"]


def test_neither_imports_nor_what_runs_outside_a_window_count(recorded: Lines) -> None:
    text = "\n".join(line for lines in recorded.values() for line in lines)
    assert "library.py:shared" in text
    assert not any(name in text for name in ("<module>", "Body", "imported", "<listcomp>", "never_in_window"))


def test_a_helper_of_a_heartbeat_counts_for_the_request_by_its_call_path(recorded: Lines) -> None:
    lines = recorded["-m pkg /window"]
    for window, caller in (("1", "request"), ("2", "heartbeat")):
        assert f"{window}\tpkg/__main__.py:{caller}\tpkg/library.py:shared" in lines


def test_the_figures_leave_out_idle_paths_and_what_ran_by_chance(tmp_path: Path) -> None:
    for name in ("api", "beat", "store", "sweep"):
        (tmp_path / f"{name}.py").write_text("one\ntwo\n", encoding="utf-8")
    beat: Call = ("api", ("beat.py:run", "store.py:call"))
    idle = {beat, ("api", ("beat.py:run",))}
    asked: set[Call] = {("api", ("api.py:encode",)), ("api", ("api.py:encode", "store.py:call"))}
    by_chance: Call = ("api", ("sweep.py:run",))
    misses = [asked | idle, asked | idle | {by_chance}]
    figures = figures_of(tmp_path, idle, misses, [{beat}], with_names=True)
    assert figures["names"] == {
        "idle": ["beat.py", "store.py"],
        "miss": ["api.py", "store.py"],
        "miss_with_idle": ["api.py", "beat.py", "store.py"],
        "cached": [],
        "cached_with_idle": ["store.py"],
    }
    assert (figures["miss_files"], figures["miss_lines"], figures["cached_files_with_idle"]) == (2, 4, 1)
    assert figures["files_by_process"] == {"api": {"miss": 2, "cached": 0}}
