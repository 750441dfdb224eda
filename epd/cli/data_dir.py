"""The folders of a stack: its data folder, which one stack holds at a time, and those that settings name."""

from __future__ import annotations

import fcntl
from pathlib import Path
from typing import IO

from epd.contracts.errors import SettingsError
from epd.folders import require_folder

_LOCK = "lock"


def hold_data_dir(folder: Path) -> IO[bytes]:
    """Hold a stack's data folder until the returned file is closed, or this process is gone.

    Two servers that append to the same files would spoil them, and each stack would remove the other's logs.

    Raises:
        SettingsError: another stack holds it, or it cannot be made or written.
    """
    require_folder(folder, "--data-dir")
    lock = (folder / _LOCK).open("ab")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        lock.close()
        raise SettingsError(f"--data-dir {folder}: in use by another stack; choose another folder") from error
    return lock
