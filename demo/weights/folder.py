"""Model folders that are created atomically, from files of installed packages.

A folder is filled under another name and then renamed, so a killed process leaves only a ``.partial-*``
folder, which a later run removes. ``SOURCE.json`` says what the folder was made from; with another source or
converter revision it is replaced.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Any

from epd.contracts.errors import SettingsError

STAMP = "SOURCE.json"
PARTIAL = ".partial-"
STALE_SECONDS = 3600.0  #: a conversion takes seconds, so older partial folders are abandoned


def publish_folder(final: Path, source: dict[str, str], fill: Callable[[Path], None]) -> bool:
    """Create ``final`` by calling ``fill`` on an empty folder next to it. False when it existed already.

    Two processes may do this at once: each fills its own folder, and the first rename wins.
    """
    if read_stamp(final) == source:
        return False
    final.parent.mkdir(parents=True, exist_ok=True)
    _sweep(final.parent)
    partial = Path(tempfile.mkdtemp(prefix=PARTIAL, dir=final.parent))
    try:
        fill(partial)
        write_json(partial / STAMP, source)
        _open_to_readers(partial)
        _swap_in(partial, final, source)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return True


def read_stamp(folder: Path) -> dict[str, str] | None:
    """What ``folder`` was made from; None when it is missing or incomplete."""
    try:
        stamp = json.loads((folder / STAMP).read_text("utf-8"))
    except (OSError, ValueError):
        return None
    return stamp if isinstance(stamp, dict) else None


def write_json(path: Path, value: Any) -> None:
    """Write ``value`` as indented JSON."""
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", "utf-8")


def _open_to_readers(folder: Path) -> None:
    folder.chmod(0o755)  # mkdtemp makes it private, and safetensors its files
    for file in folder.iterdir():
        file.chmod(0o644)


def _swap_in(partial: Path, final: Path, source: dict[str, str]) -> None:
    if read_stamp(final) == source:
        return  # another process was faster, with the same content
    if final.exists():
        outdated = Path(tempfile.mkdtemp(prefix=PARTIAL, dir=final.parent))
        os.rename(final, outdated / final.name)
        shutil.rmtree(outdated, ignore_errors=True)
    try:
        os.rename(partial, final)
    except OSError:
        if read_stamp(final) != source:
            raise


def _sweep(parent: Path) -> None:
    for left in parent.glob(f"{PARTIAL}*"):
        if time.time() - left.stat().st_mtime > STALE_SECONDS:
            shutil.rmtree(left, ignore_errors=True)


@dataclass(frozen=True)
class PackagedFile:
    """One file of an installed distribution, pinned by its sha256 in hex."""

    package: str
    path: str
    sha256: str

    def locate(self) -> Path:
        """The path of the file, after a check of its bytes.

        Raises:
            SettingsError: the package is not installed, or its file has other bytes.
        """
        try:
            found = Path(str(distribution(self.package).locate_file(self.path)))
        except PackageNotFoundError:
            found = None
        if found is None or not found.is_file():
            raise SettingsError(f"package {self.package} with {self.path} is not installed: run `make setup`")
        if file_sha256(found) != self.sha256:
            raise SettingsError(f"{found} is not the file that the demo expects (sha256 differs)")
        return found


def file_sha256(path: Path) -> str:
    """The sha256 of a file in hex."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
