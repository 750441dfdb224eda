"""One look at everything that could grow: memory and descriptors of processes, files, and Redis."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from tests.chaos.server import Server
from tests.chaos.world import World

_MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class Sample:
    """``at`` is seconds since the start of the soak; each figure has its unit in its name."""

    at: float
    figures: dict[str, float]


def take_sample(world: World, started: float) -> Sample:
    """Look at every process, at both servers and at the media folder."""
    figures = _process_figures(world) | _server_figures("broker", world.broker)
    figures |= _server_figures("store", world.store)
    for name in ("blobs", "embeddings"):
        folder = world.stack.media_dir / name
        sizes = list(_sizes(folder))
        figures[f"{name}_mib"] = round(sum(sizes) / _MIB, 3)
        figures[f"{name}_files"] = len(sizes)
    return Sample(round(time.monotonic() - started, 1), figures)


def _sizes(folder: Path) -> Iterator[int]:
    """The sizes of all files below a folder; what is removed during the walk is skipped."""
    for place, _, names in os.walk(folder):
        for name in names:
            with suppress(FileNotFoundError):
                yield Path(place, name).stat().st_size


def _process_figures(world: World) -> dict[str, float]:
    """Resident memory and open descriptors of each part, its children added."""
    figures: dict[str, float] = {}
    for name in world.stack.names():
        pid = world.stack.pid(name)
        if pid is None:
            continue
        parent = psutil.Process(pid)
        family = [parent, *parent.children(recursive=True)]
        figures[f"{name}_rss_mib"] = sum(_rss(one) for one in family)
        figures[f"{name}_fds"] = parent.num_fds()
    return figures


def _rss(process: psutil.Process) -> float:
    try:
        return round(process.memory_info().rss / _MIB, 1)
    except psutil.NoSuchProcess:  # an ffmpeg that has ended since
        return 0.0


def _server_figures(name: str, server: Server) -> dict[str, float]:
    return {
        f"{name}_keys": int(server.client.dbsize()),
        f"{name}_used_mib": round(server.client.info("memory")["used_memory"] / _MIB, 2),
        f"{name}_clients": int(server.client.info("clients")["connected_clients"]),
    }
