"""Trying whether a folder of the settings or of the command line can be written, before anything starts."""

from __future__ import annotations

import tempfile
from pathlib import Path

from epd.contracts.errors import SettingsError


def require_folder(folder: Path, named_by: str) -> None:
    """Make a folder and try it; raises ``SettingsError`` with what names it when it cannot be written."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(b"\0")
    except OSError as error:
        raise SettingsError(f"{named_by} {folder}: {error.strerror}") from error
