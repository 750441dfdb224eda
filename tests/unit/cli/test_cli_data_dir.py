"""The folders of a stack: held by one stack at a time, and tried before anything starts."""

from __future__ import annotations

from pathlib import Path

import pytest

from epd.contracts.errors import SettingsError
from epd.settings import require_folder
from epd.stack import parts
from epd.stack.parts import StackOptions, hold_data_dir, sweep_media_dirs
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


def test_a_hold_ends_with_its_file(tmp_path: Path) -> None:
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
