"""Finds the weight files inside installed packages, and trusts them only by their sha256.

The packages are read as data: they are never imported.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

from epd.contracts.errors import SettingsError


@dataclass(frozen=True)
class PackagedFile:
    """One file of an installed distribution, pinned by its sha256 in hex."""

    package: str
    path: str
    sha256: str

    def locate(self) -> Path:
        """The file's place on disk, its bytes checked.

        Raises:
            SettingsError: the package is not installed, or its file is not the pinned one.
        """
        try:
            found = Path(str(distribution(self.package).locate_file(self.path)))
        except PackageNotFoundError:
            found = None
        if found is None or not found.is_file():
            raise SettingsError(f"package {self.package} with {self.path} is not installed: run `make setup`")
        if file_sha256(found) != self.sha256:
            raise SettingsError(f"{found} is not the file that the demo was written for (sha256 differs)")
        return found


def file_sha256(path: Path) -> str:
    """sha256 of a file in hex, read in pieces."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
