"""The parts of the weight converters that need no package: CTranslate2's layout and the model folder."""

from __future__ import annotations

import json
import os
import struct
import time
from pathlib import Path

import numpy as np
import pytest

from demo.weights.ct2 import read_variables
from demo.weights.folder import PARTIAL, PackagedFile, publish_folder, read_stamp
from epd.contracts.errors import SettingsError

SOURCE = {"package": "p", "sha256": "0", "revision": "1"}


def _string(text: str) -> bytes:
    return struct.pack("<H", len(text) + 1) + text.encode() + b"\0"


def _model(variables: dict[str, np.ndarray]) -> bytes:
    ids = {np.dtype(np.float32): 0, np.dtype(np.float16): 4}
    out = struct.pack("<I", 6) + _string("WhisperSpec") + struct.pack("<II", 3, len(variables))
    for name, value in variables.items():
        out += _string(name) + struct.pack("<B", value.ndim)
        out += struct.pack(f"<{value.ndim}I", *value.shape)
        out += struct.pack("<BI", ids[value.dtype], value.nbytes) + value.tobytes()
    return out


def test_variables_come_back_as_they_were(tmp_path: Path) -> None:
    wanted = {
        "a/weight": np.arange(6, dtype=np.float32).reshape(2, 3),
        "a/bias": np.float16([1.5, -2]),
        "n": np.float32(7),
    }
    path = tmp_path / "model.bin"
    path.write_bytes(_model({name: np.asarray(value) for name, value in wanted.items()}))
    found = read_variables(path)
    assert found.keys() == wanted.keys()
    for name, value in wanted.items():
        np.testing.assert_array_equal(found[name], value)


@pytest.mark.parametrize("kept", [0, 3, 20, 40, -1])
def test_a_cut_file_is_a_clear_error(tmp_path: Path, kept: int) -> None:
    path = tmp_path / "model.bin"
    path.write_bytes(_model({"a/weight": np.zeros((4, 4), np.float32)})[:kept])
    with pytest.raises(SettingsError, match=r"model\.bin is not a CTranslate2 model"):
        read_variables(path)


def test_an_absent_package_is_named() -> None:
    with pytest.raises(SettingsError, match=r"no-such-package-here.*make setup"):
        PackagedFile("no-such-package-here", "x.bin", "0" * 64).locate()


def test_a_changed_file_is_refused() -> None:
    with pytest.raises(SettingsError, match="sha256 differs"):
        PackagedFile("pytest", "pytest/__init__.py", "0" * 64).locate()


def test_a_folder_is_filled_once(tmp_path: Path) -> None:
    calls: list[Path] = []

    def fill(folder: Path) -> None:
        calls.append(folder)
        (folder / "x").write_text("x")

    assert publish_folder(tmp_path / "m", SOURCE, fill)
    assert not publish_folder(tmp_path / "m", SOURCE, fill)
    assert len(calls) == 1
    assert json.loads((tmp_path / "m" / "SOURCE.json").read_text()) == SOURCE
    assert [entry.name for entry in tmp_path.iterdir()] == ["m"]


def test_another_revision_replaces_the_folder(tmp_path: Path) -> None:
    publish_folder(tmp_path / "m", SOURCE, lambda folder: (folder / "old").touch())
    publish_folder(tmp_path / "m", SOURCE | {"revision": "2"}, lambda folder: (folder / "new").touch())
    assert sorted(entry.name for entry in (tmp_path / "m").iterdir()) == ["SOURCE.json", "new"]
    assert [entry.name for entry in tmp_path.iterdir()] == ["m"]


def test_a_failed_fill_leaves_nothing(tmp_path: Path) -> None:
    def fill(folder: Path) -> None:
        (folder / "half").touch()
        raise RuntimeError("stop")

    with pytest.raises(RuntimeError, match="stop"):
        publish_folder(tmp_path / "m", SOURCE, fill)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_another_process_made_first_is_kept(tmp_path: Path) -> None:
    def fill(folder: Path) -> None:
        publish_folder(tmp_path / "m", SOURCE, lambda other: (other / "theirs").touch())
        (folder / "ours").touch()

    publish_folder(tmp_path / "m", SOURCE, fill)
    assert (tmp_path / "m" / "theirs").exists()
    assert read_stamp(tmp_path / "m") == SOURCE
    assert [entry.name for entry in tmp_path.iterdir()] == ["m"]


def test_partial_folders_of_the_dead_are_swept(tmp_path: Path) -> None:
    dead, young = tmp_path / f"{PARTIAL}dead", tmp_path / f"{PARTIAL}young"
    dead.mkdir()
    young.mkdir()
    long_ago = time.time() - 7200
    os.utime(dead, (long_ago, long_ago))
    publish_folder(tmp_path / "m", SOURCE, lambda folder: None)
    assert not dead.exists()
    assert young.exists()
