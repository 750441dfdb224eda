"""Child processes that do not outlive their parent, however it ends."""

from __future__ import annotations

import ctypes
import signal
import sys

_PR_SET_PDEATHSIG = 1

# Looked up once: between fork and exec nothing may be imported or allocated that a lock could guard.
_libc = ctypes.CDLL(None) if sys.platform == "linux" else None


def die_with_parent() -> None:
    """For ``preexec_fn``: Linux kills the child when the thread that started it ends. Elsewhere: nothing."""
    if _libc is not None:
        _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
