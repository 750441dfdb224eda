"""What a stretch of work costs: CPU seconds by part of the stack, and what its Redis server did.

The CPU time of a part is that of its process and of all processes below it, live or dead. Load generators
and media servers are no parts.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import psutil
import redis

#: Commands by which clients run scripts.
_SCRIPTS = ("eval", "evalsha", "evalsha_ro", "fcall")


def tree_cpu_seconds(pid: int) -> float:
    """User and system seconds of a process and all below it, also of dead children that were waited for.

    Raises:
        psutil.NoSuchProcess: there is no such process.
    """
    root = psutil.Process(pid)
    total = 0.0
    for process in [root, *root.children(recursive=True)]:
        with suppress(psutil.NoSuchProcess):
            times = process.cpu_times()
            total += times.user + times.system + times.children_user + times.children_system
    return total


@dataclass(frozen=True, slots=True)
class ServerWork:
    """What the server of store and broker did.

    ``round_trips`` counts reads from its connections: a command or a pipeline of commands is one.
    ``commands`` counts by name, those inside scripts too; ``scripts`` are runs of scripts.
    """

    round_trips: int
    scripts: int
    commands: Mapping[str, int]

    @classmethod
    def now(cls, client: redis.Redis) -> ServerWork:
        """All since the server started."""
        stats: Any = client.info("stats")
        by_name: Any = client.info("commandstats")
        commands = {name.removeprefix("cmdstat_"): int(row["calls"]) for name, row in by_name.items()}
        scripts = sum(commands.get(name, 0) for name in _SCRIPTS)
        return cls(int(stats["total_reads_processed"]), scripts, commands)

    def since(self, before: ServerWork) -> ServerWork:
        """What it did after ``before``."""
        commands = {name: count - before.commands.get(name, 0) for name, count in self.commands.items()}
        return ServerWork(
            self.round_trips - before.round_trips,
            self.scripts - before.scripts,
            {name: count for name, count in commands.items() if count},
        )


@dataclass(frozen=True, slots=True)
class Costs:
    """CPU seconds by part, and the server's work."""

    cpu: Mapping[str, float]
    server: ServerWork

    def an_item(self, items: int) -> dict[str, Any]:
        """CPU milliseconds, round trips, scripts and the commonest commands, for each of so many items."""
        commonest = sorted(self.server.commands.items(), key=lambda entry: -entry[1])[:12]
        return {
            "cpu_ms": {part: round(1000 * seconds / items, 2) for part, seconds in self.cpu.items()},
            "cpu_ms_total": round(1000 * sum(self.cpu.values()) / items, 2),
            "round_trips": round(self.server.round_trips / items, 2),
            "scripts": round(self.server.scripts / items, 2),
            "commands": {name: round(count / items, 2) for name, count in commonest},
        }


def add_costs(costs: Iterable[Costs]) -> Costs:
    """Several stretches as one."""
    cpu: dict[str, float] = {}
    commands: dict[str, int] = {}
    round_trips = scripts = 0
    for one in costs:
        for part, seconds in one.cpu.items():
            cpu[part] = cpu.get(part, 0.0) + seconds
        for name, count in one.server.commands.items():
            commands[name] = commands.get(name, 0) + count
        round_trips += one.server.round_trips
        scripts += one.server.scripts
    return Costs(cpu, ServerWork(round_trips, scripts, commands))


class Meter:
    """Measures from its creation on. ``parts`` are process ids by part; ``server`` is a URL."""

    def __init__(self, parts: Mapping[str, int], server: str) -> None:
        self._parts = parts
        self._client = redis.Redis.from_url(server)
        self._before = self._now()

    def _now(self) -> Costs:
        cpu = {part: tree_cpu_seconds(pid) for part, pid in self._parts.items()}
        return Costs(cpu, ServerWork.now(self._client))

    def costs(self) -> Costs:
        """The costs since its creation.

        Raises:
            psutil.NoSuchProcess: a part died, so its costs are unknown.
        """
        now = self._now()
        cpu = {part: seconds - self._before.cpu[part] for part, seconds in now.cpu.items()}
        return Costs(cpu, now.server.since(self._before.server))
