"""The folders of a stack: its data folder, which one stack holds at a time, and those that settings name."""

from __future__ import annotations

import fcntl
import shlex
from pathlib import Path
from typing import IO

from epd.contracts.errors import SettingsError
from epd.folders import require_folder

#: Where ``epd up`` keeps its data unless it is told otherwise.
DEFAULT_DATA_DIR = Path(".epd/stack")
_LOCK = "lock"
_ENV = "env"


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


def env_file(folder: Path) -> Path:
    """The settings of the running stack, for a shell to source. It goes when the stack stops."""
    return folder / _ENV


def running_setting(folder: Path, name: str) -> str | None:
    """A setting of the stack that runs on this data folder; None where none runs, or it has none such."""
    try:
        lines = env_file(folder).read_text(encoding="utf-8").splitlines()
    except OSError:
        return None
    for line in lines:
        if line.startswith(f"export {name}="):
            return "".join(shlex.split(line.partition("=")[2]))
    return None
