"""The command line's parts that need no server."""

from __future__ import annotations

from pathlib import Path

import pytest

from epd.cli.encode import expand
from epd.contracts.errors import InvalidRequest, SettingsError
from epd.stack import parts
from epd.stack.parts import (
    StackOptions,
    free_port,
    new_media_dir,
    port_is_free,
    store_beside,
    sweep_media_dirs,
)
from epd.stack.stack import Stack
from tests.paths import ROOT

pytestmark = pytest.mark.unit


def test_names_come_from_arguments_globs_and_standard_input(tmp_path: Path) -> None:
    for name in ("a.png", "b.png", "[c].png"):
        (tmp_path / name).write_bytes(b"x")
    found = list(expand([str(tmp_path / "[ab].png"), "-", "http://h.example/x.png"], ["one.png\n", "\n"]))
    assert found == [str(tmp_path / "a.png"), str(tmp_path / "b.png"), "one.png", "http://h.example/x.png"]
    assert list(expand([str(tmp_path / "[c].png")], [])) == [str(tmp_path / "[c].png")]


def test_a_glob_without_a_match_is_an_error() -> None:
    with pytest.raises(InvalidRequest, match=r"nothing-\*"):
        list(expand(["nothing-*.png"], []))


def test_a_port_in_use_is_refused_by_number() -> None:
    import socket

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert not port_is_free(port)
        with pytest.raises(SettingsError, match=str(port)):
            free_port(port)
    assert free_port() > 0


def test_folders_of_dead_stacks_are_swept_and_of_live_ones_kept() -> None:
    mine = new_media_dir()
    dead = mine.with_name("epd-999999999-abc")
    dead.mkdir()
    try:
        swept = sweep_media_dirs()
        assert dead in swept
        assert not dead.exists()
        assert mine.exists()
    finally:
        mine.rmdir()


@pytest.mark.parametrize(
    ("broker", "store"),
    [
        ("redis://host:6379", "redis://host:6379/1"),
        ("redis://host:6379/", "redis://host:6379/1"),
        ("redis://user:word@host:6379/0", "redis://user:word@host:6379/1"),
        ("rediss://host/3?ssl_cert_reqs=none", "rediss://host/1?ssl_cert_reqs=none"),
        ("redis://host/1", "redis://host/0"),
    ],
)
def test_a_store_without_a_url_is_beside_its_broker(broker: str, store: str) -> None:
    assert store_beside(broker) == store


def test_a_broker_on_a_socket_needs_a_store_url() -> None:
    with pytest.raises(SettingsError, match="EPD_STORE_URL"):
        store_beside("redis+socket:///run/redis.sock")


def test_a_stack_that_cannot_start_leaves_no_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import socket

    monkeypatch.setattr(parts, "_SHM", tmp_path)
    config = ROOT / "epd.toml"
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        options = StackOptions(config=config, data_dir=tmp_path / "data", api_port=taken.getsockname()[1])
        with pytest.raises(SettingsError, match="in use"):
            Stack(options)
    assert list(tmp_path.iterdir()) == []


def test_folders_outside_shared_memory_are_swept_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parts, "_SHM", tmp_path / "missing")
    monkeypatch.setenv("HOME", str(tmp_path))
    mine = new_media_dir()
    dead = mine.with_name("epd-999999999-abc")
    dead.mkdir()
    assert sweep_media_dirs() == [dead]
    assert mine.exists()
