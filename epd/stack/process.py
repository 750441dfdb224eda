"""One supervised child process, with its own process group and log file. It does not outlive its parent."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from epd.processes import die_with_parent

#: Bytes at which a log file is cut to nothing.
_LOG_LIMIT = 32 << 20
#: Seconds before a restart; they double up to the last, unless the process ran for ``_LONG_LIFE``.
_FIRST_BACKOFF = 0.2
_LAST_BACKOFF = 5.0
_LONG_LIFE = 10.0


@dataclass(frozen=True, slots=True)
class Spec:
    """What to run. ``stop_signal`` requests a clean exit; processes stop in ``stop_order``, lowest first."""

    name: str
    argv: Sequence[str]
    stop_order: int
    stop_signal: signal.Signals = signal.SIGTERM


@dataclass(slots=True)
class Child:
    """A process that is started, watched, and restarted after a growing, bounded delay."""

    spec: Spec
    log_path: Path
    environment: Mapping[str, str]
    restarts: int = 0
    held: bool = False
    _process: subprocess.Popen[bytes] | None = None
    _started_at: float = 0.0
    _backoff: float = _FIRST_BACKOFF
    _restart_at: float | None = field(default=None)

    @property
    def pid(self) -> int | None:
        """The process id of the running child, or None."""
        return self._process.pid if self._process is not None and self._process.poll() is None else None

    @property
    def cannot_start(self) -> bool:
        """Whether it exited with the status for settings with which no start can succeed (78, EX_CONFIG)."""
        return self._process is not None and self._process.poll() == os.EX_CONFIG

    def start(self) -> None:
        """Run it. Linux kills it when the calling thread dies, so no child outlives the stack."""
        self.log_path.parent.mkdir(parents=True, exist_ok=True)
        with self.log_path.open("ab") as log:
            self._process = subprocess.Popen(
                list(self.spec.argv),
                env=dict(self.environment),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=die_with_parent,  # noqa: PLW1509  only calls prctl
            )
        self._started_at = time.monotonic()
        self._restart_at = None

    def check(self) -> None:
        """Restart it if it died and its delay is over, unless it cannot start; keep its log bounded."""
        if self._restart_at is not None:
            if time.monotonic() >= self._restart_at and not self.held:
                self.restarts += 1
                self.start()
        elif self.pid is None and not self.cannot_start:
            long_life = time.monotonic() - self._started_at > _LONG_LIFE
            self._backoff = _FIRST_BACKOFF if long_life else min(self._backoff * 2, _LAST_BACKOFF)
            self._restart_at = time.monotonic() + self._backoff
        self._bound_log()

    def hold(self) -> None:
        """Do not restart it when it dies, until ``release``."""
        self.held = True

    def release(self) -> None:
        """Restart it again when it dies; if it is down, it starts at the next ``check``."""
        self.held = False
        if self._restart_at is not None:
            self._restart_at = time.monotonic()

    def signal(self, number: int) -> None:
        """Send a signal to the child only, not to its group. Does nothing when it is dead."""
        pid = self.pid  # read once: it may die between two reads
        if pid is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)

    def wait(self, timeout: float) -> bool:
        """Wait for its exit; return whether it exited within ``timeout`` seconds."""
        if self._process is None:
            return True
        try:
            self._process.wait(timeout)
        except subprocess.TimeoutExpired:
            return False
        return True

    def kill_group(self) -> None:
        """SIGKILL the child and every process in its group."""
        if self._process is None:
            return
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self.wait(5)

    def log_tail(self, lines: int = 15) -> str:
        """The last lines of its log."""
        with contextlib.suppress(OSError):
            return "\n".join(self.log_path.read_text(errors="replace").splitlines()[-lines:])
        return ""

    def last_log_line(self, prefix: str = "") -> str:
        """The last line of its log that starts with ``prefix``, without the prefix; else the last line."""
        lines = [line for line in self.log_tail(100).splitlines() if line.strip()] or [""]
        own = [line.removeprefix(prefix) for line in lines if line.startswith(prefix)]
        return (own or lines)[-1]

    def _bound_log(self) -> None:
        # The child appends, so the file can be truncated while it writes.
        with contextlib.suppress(OSError):
            if self.log_path.stat().st_size > _LOG_LIMIT:
                os.truncate(self.log_path, 0)
