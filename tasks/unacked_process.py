"""Proof that a process of this machine is dead, so that nobody need wait for its heartbeat to run out."""

from __future__ import annotations

import os
import socket
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
