"""The wish of a user that a command ends, told by a signal.

Not a ``threading.Event``: a handler runs between two steps of the main thread, and if that is inside the
event's own ``wait``, which holds its lock, ``set`` waits for a lock that nobody will ever give back.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal


class StopRequest:
    """Set by signals, waited for by the main thread. No lock anywhere."""

    def __init__(self) -> None:
        """Not asked yet. Takes two file descriptors for the life of the process."""
        self._asked = False
        self._reading, self._writing = os.pipe()
        os.set_blocking(self._writing, False)

    def on(self, *numbers: signal.Signals) -> None:
        """Let each of these signals ask; for the main thread."""
        for number in numbers:
            signal.signal(number, lambda *_: self.ask())

    def ask(self) -> None:
        """Ask for the end; again and again, if need be."""
        self._asked = True
        with contextlib.suppress(BlockingIOError):  # full: whoever waits is long awake
            os.write(self._writing, b"x")

    def is_asked(self) -> bool:
        """Whether the end was asked for."""
        return self._asked

    def wait(self, timeout: float) -> bool:
        """Wait for it, at most ``timeout`` seconds; whether it was asked for."""
        select.select([self._reading], [], [], timeout)
        return self._asked
