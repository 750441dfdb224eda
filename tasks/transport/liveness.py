"""Proof that a process of this machine is dead, so that nobody need wait for its heartbeat to run out."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

import psutil

#: The kernel gives start times in ticks after boot; the boot time itself is known to about a second.
START_TIME_SLACK_S = 2.0


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

    def as_dict(self) -> dict[str, str | int | float]:
        """Plain values, for JSON."""
        return asdict(self)

    def same_process(self, other: ProcessMark) -> bool:
        """Whether both name one process."""
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

    The user is part of it because ``hidepid`` mounts of /proc hide the processes of others, and the host's
    name because sandboxes such as gVisor number every namespace alike.
    """
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return f"{socket.gethostname()}/{boot}/{Path('/proc/self/ns/pid').readlink()}/{os.getuid()}"
    except OSError:
        return ""


#: Sessions of this very process that are not settled yet, filled by every ``Obituary``.
_own_sessions: set[str] = set()


class Obituary:
    """Judges other sessions; knows those of this process, which may hold several for a while."""

    def __init__(self, own_session: str) -> None:
        _own_sessions.add(own_session)
        self._session = own_session
        self._own_mark = ProcessMark.own()

    def is_certain(self, session: str, descriptor: bytes) -> bool:
        """True when the process behind ``descriptor`` is gone, or was replaced by this one through exec."""
        if session in _own_sessions:
            return False
        mark = parse_mark(descriptor)
        return mark is not None and (mark.same_process(self._own_mark) or mark.is_gone())

    def close(self) -> None:
        """Forget the session once it is settled."""
        _own_sessions.discard(self._session)


def parse_mark(descriptor: bytes) -> ProcessMark | None:
    """The mark within a descriptor; None when it was written by something else than this code."""
    try:
        fields = json.loads(descriptor)
        return ProcessMark(
            namespace=str(fields["namespace"]), pid=int(fields["pid"]), started=float(fields["started"])
        )
    except (ValueError, KeyError, TypeError):
        return None


class SilenceWatch:
    """Adds up how long each session's counter stood still *while we were looking*.

    Neither wall clocks nor key expiry are trusted: after an outage of the server, or a pause of this very
    process, every counter looks old, and nobody is dead. So a gap between two looks counts at most as
    twice the period, and a look that failed starts a new gap.
    """

    def __init__(self, *, limit_s: float, period_s: float) -> None:
        self._limit_s = limit_s
        self._longest_step_s = 2 * period_s
        self._last_look: float | None = None
        self._beats: dict[str, bytes | None] = {}
        self._silence: dict[str, float] = {}

    def look(self, now: float, beats: Mapping[str, bytes | None]) -> list[str]:
        """Take one look at all registered sessions; returns those silent for ``limit_s``.

        ``now`` is a monotonic time in seconds; a beat is None where its key has expired.
        """
        step = 0.0 if self._last_look is None else min(now - self._last_look, self._longest_step_s)
        self._last_look = now
        self._silence = {name: self._silence_of(name, beat, step) for name, beat in beats.items()}
        self._beats = dict(beats)
        return [name for name, silence in self._silence.items() if silence >= self._limit_s]

    def look_failed(self) -> None:
        """The server did not answer: what was silent meanwhile proves nothing."""
        self._last_look = None

    def _silence_of(self, name: str, beat: bytes | None, step: float) -> float:
        known = name in self._silence
        if not known or (beat is not None and beat != self._beats[name]):
            return 0.0
        return self._silence[name] + step
