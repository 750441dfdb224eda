"""Decode children: what a call gives, its errors, its place in the order, and worn children."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from epd.contracts.errors import (
    BlobMissing,
    BlobSpaceFull,
    CorruptMedia,
    DecodeTimeout,
    Internal,
    MediaTooLarge,
)
from epd.contracts.media import ItemOptions, Modality
from tests.hostile.bad_server import MEDIA
from tests.unit.workers.children_kit import (
    CORRUPT,
    IMAGE,
    RULES,
    VIDEO,
    WITH_AUDIO,
    MakePool,
    is_gone,
    run,
    send,
    wait_until,
)
from workers.decode.children import DecodeChildren
from workers.decode.decode import audio_track, decode
from workers.limits import DecodeLimits

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="needs prctl and /proc")


@pytest.mark.parametrize(
    ("name", "modality"),
    [(IMAGE, Modality.IMAGE), (VIDEO, Modality.VIDEO), (WITH_AUDIO, Modality.AUDIO)],
)
def test_a_child_gives_what_decode_gives(
    pool: DecodeChildren, tmp_path: Path, name: str, modality: Modality
) -> None:
    ours, theirs = tmp_path / "ours" / "blob", tmp_path / "theirs" / "blob"
    for out in (ours, theirs):
        out.parent.mkdir()
    held: list[tuple[int, int]] = []
    raw = run(pool, theirs, name, modality, hold=lambda nbytes: held.append((nbytes, threading.get_ident())))
    limits = DecodeLimits()
    assert raw == decode(
        MEDIA / name, modality=modality, options=ItemOptions(), rules=RULES[modality], limits=limits, out=ours
    )
    assert ours.read_bytes() == theirs.read_bytes()
    assert held[0][0] >= raw.blob.nbytes
    assert held[0][1] == threading.get_ident()


def test_a_child_finds_the_audio_track(pool: DecodeChildren) -> None:
    limits = DecodeLimits()
    found = pool.audio_track(MEDIA / WITH_AUDIO, limits=limits, timeout=20)
    assert found is not None
    assert found == audio_track(MEDIA / WITH_AUDIO, limits=limits)
    assert pool.audio_track(MEDIA / VIDEO, limits=limits, timeout=20) is None


def test_errors_come_back_as_themselves(
    pool: DecodeChildren, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    out = tmp_path / "blob"

    def full(nbytes: int) -> None:
        raise BlobSpaceFull(f"{nbytes} bytes", retry_after=1.5)

    with pytest.raises(BlobSpaceFull, match="bytes") as refused:
        run(pool, out, hold=full)
    assert refused.value.retry_after == 1.5
    with pytest.raises(CorruptMedia):
        run(pool, out, CORRUPT, Modality.VIDEO)
    with pytest.raises(MediaTooLarge, match="more than 4 pixels"):
        run(pool, out, image_pixels=4)
    with pytest.raises(BlobMissing):
        run(pool, out, tmp_path / "missing.jpg")
    assert not caplog.records
    with pytest.raises(Internal):
        run(pool, out, tmp_path)
    assert "IsADirectoryError" in caplog.text
    assert not out.exists()


def test_an_error_of_hold_that_is_no_error_of_ours_costs_the_child_alone(
    pool: DecodeChildren, tmp_path: Path
) -> None:
    def broken(nbytes: int) -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        run(pool, tmp_path / "blob", hold=broken)
    assert not (tmp_path / "blob").exists()
    assert run(pool, tmp_path / "blob")


def test_many_threads_share_two_children(pool: DecodeChildren, tmp_path: Path) -> None:
    with ThreadPoolExecutor(16) as threads:
        made = list(threads.map(lambda place: run(pool, tmp_path / str(place)), range(64)))
    assert len({raw.model_copy(update={"blob": None}) for raw in made}) == 1
    assert len({(tmp_path / str(place)).read_bytes() for place in range(64)}) == 1
    assert len(pool.pids) == pool.idle == pool.count == 2


def test_signals_for_the_worker_end_no_decode(pool: DecodeChildren, tmp_path: Path) -> None:
    def interrupt(nbytes: int) -> None:
        send(pool, signal.SIGTERM)
        send(pool, signal.SIGINT)

    run(pool, tmp_path / "a")
    before = pool.pids
    assert run(pool, tmp_path / "a", hold=interrupt)
    assert pool.pids == before
    assert os.getpgid(0) not in map(os.getpgid, before)


def test_a_worn_child_is_replaced_by_one_that_has_started(
    make_pool: MakePool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("workers.decode.children._MOST_CALLS", 3)
    children = make_pool()
    run(children, tmp_path / "a")
    first = children.pids

    def is_replaced() -> bool:
        run(children, tmp_path / "a")
        return not {*first} & {*children.pids}

    wait_until(is_replaced)
    wait_until(lambda: all(map(is_gone, first)))
    assert children.idle == 1


def test_calls_get_their_child_in_order_or_none_in_time(
    make_pool: MakePool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("workers.decode.children.QUEUE_SECONDS", 0.0)
    children, free, order = make_pool(), threading.Event(), list[int]()
    run(children, tmp_path / "0")
    with ThreadPoolExecutor(4) as threads:
        calls = [threads.submit(run, children, tmp_path / "0", hold=lambda _: free.wait(20) and None)]
        wait_until(lambda: children.idle == 0)
        for place in (1, 2, 3):
            hold = lambda _, place=place: order.append(place)  # noqa: E731
            calls.append(threads.submit(run, children, tmp_path / str(place), hold=hold))
            wait_until(lambda place=place: len(children._turns) == place)
        with pytest.raises(DecodeTimeout, match="free"):
            run(children, tmp_path / "4", timeout=0.05)
        free.set()
        assert all(call.result(20) for call in calls)
    assert order == [1, 2, 3]


def test_no_socket_can_be_opened() -> None:
    program = (
        "import socket\n"
        "from workers.decode.child import refuse_sockets\n"
        "refuse_sockets()\n"
        "try: socket.socket()\n"
        "except PermissionError: print('refused')"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "refused"
