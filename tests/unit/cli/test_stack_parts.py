"""The parts of a stack: its folders, ports and store URL, checked before anything starts."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from epd.contracts.errors import SettingsError
from epd.settings import require_folder
from epd.stack import parts
from epd.stack.parts import (
    StackOptions,
    default_store_url,
    free_port,
    hold_data_dir,
    new_media_dir,
    port_is_free,
    sweep_media_dirs,
)
from epd.stack.stack import Stack
from tests.paths import ROOT

pytestmark = pytest.mark.unit

CONFIG = ROOT / "epd.toml"


@pytest.fixture(autouse=True)
def shm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "shm"
    folder.mkdir()
    monkeypatch.setattr(parts, "_SHM", folder)
    return folder


def test_a_data_folder_is_held_by_one_stack_until_it_stops(tmp_path: Path) -> None:
    options = StackOptions(config=CONFIG, data_dir=tmp_path / "data")
    first = Stack(options)
    with pytest.raises(SettingsError, match="in use by another stack"):
        Stack(options)
    first.stop()
    Stack(options).stop()


def test_closing_the_lock_file_releases_the_folder(tmp_path: Path) -> None:
    hold_data_dir(tmp_path).close()
    hold_data_dir(tmp_path).close()


@pytest.mark.parametrize("folder", ["file/data", "/proc/nothing"])
def test_a_data_folder_that_cannot_be_made_is_named_and_nothing_is_left(
    tmp_path: Path, shm: Path, folder: str
) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(SettingsError, match=r"--data-dir .*(Not a directory|No such file)"):
        Stack(StackOptions(config=CONFIG, data_dir=tmp_path / folder))
    assert list(shm.iterdir()) == []


@pytest.mark.parametrize("name", ["EPD_BLOB_DIR", "EPD_EMBEDDING_DIR", "EPD_L2_DIR"])
def test_a_folder_of_the_settings_that_cannot_be_written_is_named(tmp_path: Path, name: str) -> None:
    options = StackOptions(config=CONFIG, data_dir=tmp_path / "data", overrides={name: "/proc/nothing"})
    with pytest.raises(SettingsError, match=f"{name} /proc/nothing"):
        Stack(options)


def test_a_folder_that_is_tried_stays_empty(tmp_path: Path) -> None:
    require_folder(tmp_path / "a/b", "this")
    assert list((tmp_path / "a/b").iterdir()) == []


def test_a_folder_whose_name_only_looks_like_a_stacks_is_left_alone(shm: Path) -> None:
    strange = shm / f"epd-{10**30}-abc"
    strange.mkdir()
    assert sweep_media_dirs() == []
    assert strange.exists()


def test_a_port_in_use_is_refused_by_number() -> None:
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
def test_a_store_without_a_url_is_on_the_server_of_its_broker(broker: str, store: str) -> None:
    assert default_store_url(broker) == store


def test_a_broker_on_a_socket_needs_a_store_url() -> None:
    with pytest.raises(SettingsError, match="EPD_STORE_URL"):
        default_store_url("redis+socket:///run/redis.sock")


def test_a_stack_that_cannot_start_leaves_no_folder(tmp_path: Path, shm: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        options = StackOptions(config=CONFIG, data_dir=tmp_path / "data", api_port=taken.getsockname()[1])
        with pytest.raises(SettingsError, match="in use"):
            Stack(options)
    assert list(tmp_path.iterdir()) == [shm]
    assert list(shm.iterdir()) == []


def test_folders_outside_shared_memory_are_swept_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parts, "_SHM", tmp_path / "missing")
    monkeypatch.setenv("HOME", str(tmp_path))
    mine = new_media_dir()
    dead = mine.with_name("epd-999999999-abc")
    dead.mkdir()
    assert sweep_media_dirs() == [dead]
    assert mine.exists()
