"""Which workers are dead: at once when the process can be seen from here, else after a silent heartbeat."""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

import psutil

#: The kernel gives start times in ticks after boot; the boot time itself is known to about a second.
START_TIME_SLACK_S = 2.0

#: Sessions of this process that are not settled yet. A process may hold several for a while.
own_sessions: set[str] = set()


def is_process_dead(session: str, descriptor: bytes) -> bool:
    """Whether the process of a session is certainly dead, or was replaced by this one through exec.

    Args:
        session: the session's id.
        descriptor: what ``describe_own_process`` gave in the session's process.
    """
    if session in own_sessions:
        return False
    mark = parse_mark(descriptor)
    return mark is not None and (mark.same_process(ProcessMark.own()) or mark.is_gone())


def describe_own_process(name: str) -> str:
    """JSON that names this process, from which any other process can judge whether it is dead."""
    return json.dumps({"name": name, "since": time.time(), **asdict(ProcessMark.own())})


def parse_mark(descriptor: bytes) -> ProcessMark | None:
    """The process that a descriptor names; None when this code did not write it."""
    try:
        fields = json.loads(descriptor)
        return ProcessMark(
            namespace=str(fields["namespace"]), pid=int(fields["pid"]), started=float(fields["started"])
        )
    except (ValueError, KeyError, TypeError):
        return None


@dataclass(frozen=True, kw_only=True)
class ProcessMark:
    """Names one process: where its id is valid, the id, and its start in seconds since the epoch."""

    namespace: str
    pid: int
    started: float

    @classmethod
    def own(cls) -> ProcessMark:
        """The mark of this process."""
        pid = os.getpid()
        return cls(namespace=_pid_namespace(), pid=pid, started=psutil.Process(pid).create_time())

    def same_process(self, other: ProcessMark) -> bool:
        """Whether both marks name one process."""
        return (
            bool(self.namespace)
            and (self.namespace, self.pid) == (other.namespace, other.pid)
            and abs(self.started - other.started) <= START_TIME_SLACK_S
        )

    def is_gone(self) -> bool:
        """True only when it is certain; a process of another machine or container is never called gone."""
        if not self.namespace or self.namespace != _pid_namespace():
            return False
        try:
            process = psutil.Process(self.pid)
            if process.status() in {psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD}:
                return True
            return abs(process.create_time() - self.started) > START_TIME_SLACK_S
        except psutil.NoSuchProcess:
            return True
        except psutil.AccessDenied:
            return False


def _pid_namespace() -> str:
    """Host, boot, namespace and user within which process ids can be compared; empty where unknown.

    The user is included because ``hidepid`` mounts of /proc hide the processes of other users, and the host
    name because sandboxes such as gVisor number every namespace alike.
    """
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return f"{socket.gethostname()}/{boot}/{Path('/proc/self/ns/pid').readlink()}/{os.getuid()}"
    except OSError:
        return ""


class HeartbeatWatch:
    """Adds up how long each session's heartbeat counter did not change *while we were looking*.

    Neither wall clocks nor key expiry are trusted: after an outage of the server, or a pause of this very
    process, every counter looks old although nobody is dead. So the time between two looks counts as twice
    the period at most, and a failed look counts as no time at all.
    """

    def __init__(self, *, limit_s: float, period_s: float) -> None:
        self._limit_s = limit_s
        self._longest_step_s = 2 * period_s
        self._last_look: float | None = None
        self._beats: dict[str, bytes | None] = {}
        self._silence: dict[str, float] = {}

    def look(self, now: float, beats: Mapping[str, bytes | None]) -> list[str]:
        """Look at all registered sessions once.

        Args:
            now: monotonic time in seconds.
            beats: counter by session; None where its key has expired.

        Returns:
            The sessions that have been silent for ``limit_s``.
        """
        step = 0.0 if self._last_look is None else min(now - self._last_look, self._longest_step_s)
        self._last_look = now
        self._silence = {name: self._silence_of(name, beat, step) for name, beat in beats.items()}
        self._beats = dict(beats)
        return [name for name, silence in self._silence.items() if silence >= self._limit_s]

    def look_failed(self) -> None:
        """The server did not answer: silence until the next look proves nothing."""
        self._last_look = None

    def _silence_of(self, name: str, beat: bytes | None, step: float) -> float:
        known = name in self._silence
        if not known or (beat is not None and beat != self._beats[name]):
            return 0.0
        return self._silence[name] + step
