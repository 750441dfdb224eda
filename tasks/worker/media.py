"""The work of a CPU worker's process: its threads and decoding children, made once when the worker starts."""

from __future__ import annotations

from tasks.flow.work import Work, start_work
from tasks.process import process_context

_work: Work | None = None


def open_work(*, decodes: bool) -> Work:
    """Make the threads of this process, and its children if it decodes.

    Raises:
        SettingsError: a setting or the config file is wrong.
    """
    global _work  # noqa: PLW0603
    _work = start_work(process_context(), decodes=decodes)
    return _work


def process_work() -> Work:
    """What ``open_work`` made."""
    assert _work is not None
    return _work
