"""Rounds of both ways, one after the other, so that a busy machine touches both.

CPU of a read is that of every process it needs: the client (this process), the API and the store, each
counted over a block of reads, their idle work included. CPU of the other way is this process's alone: the
web server's is left out.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

from bench.handoff.recompute import FILM, PHOTO, Recompute, make_media, web_server
from bench.handoff.site import Site, running_site
from epd.client import Client
from epd.contracts.handoff import Handoff

_MEMORY = Path("/dev/shm")
_WARM_UP = 100


@dataclass(frozen=True, slots=True)
class Cost:
    """Seconds of one read, or of one recomputation."""

    wall: float
    cpu: float


@dataclass(frozen=True, slots=True)
class Side:
    """Both ways to one file's metadata, round by round; ``nbytes`` is the handoff's size."""

    reads: tuple[Cost, ...]
    recomputed: tuple[Cost, ...]
    nbytes: int

    @property
    def wall_ratio(self) -> float:
        """How many times as long the recomputation takes: the median over the rounds."""
        return _median(self, lambda cost: cost.wall)

    @property
    def cpu_ratio(self) -> float:
        """How many times as much CPU it takes."""
        return _median(self, lambda cost: cost.cpu)


def measure(rounds: int, reads: int, seconds: int) -> dict[str, Side]:
    """Both sides by file name; each round has so many reads of each file, and the video so many seconds.

    Raises:
        RuntimeError: a part of the stack died, or both ways came to different grids.
        EncodeFailed: a file could not be encoded.
    """
    with tempfile.TemporaryDirectory(
        prefix="epd-handoff-", dir=_MEMORY if _MEMORY.is_dir() else None
    ) as name:
        folder = Path(name)
        media = folder / "media"
        media.mkdir()
        make_media(media, seconds)
        with web_server(media) as web, running_site(folder, [media / PHOTO, media / FILM]) as site:
            return _both(site, Recompute(web, folder), rounds, reads)


def _both(site: Site, recompute: Recompute, rounds: int, reads: int) -> dict[str, Side]:
    ways = {PHOTO: recompute.image, FILM: recompute.video}
    costs: dict[str, tuple[list[Cost], list[Cost]]] = {name: ([], []) for name in ways}
    with Client(site.stack.api_url) as epd:
        for name, again in ways.items():
            _check(again(name), epd.handoff(name))
            _read(site, epd, name, _WARM_UP)
        for _ in range(rounds):
            for name, again in ways.items():
                costs[name][0].append(_read(site, epd, name, reads))
                costs[name][1].append(_once(again, name))
        sizes = {name: len(epd.handoff(name).to_json()) for name in ways}
    return {name: Side(tuple(read), tuple(done), sizes[name]) for name, (read, done) in costs.items()}


def _check(grid: Sequence[int], handoff: Handoff) -> None:
    """Both ways have to tell the same of a file, or one of them leaves work out."""
    known = handoff.items[0].metadata.grid_thw
    if known is None or tuple(grid) != known:
        raise RuntimeError(f"grids {tuple(grid)} and {known}: the two ways do not do the same")


def _once(again: Callable[[str], object], name: str) -> Cost:
    wall, cpu = time.perf_counter(), time.process_time()
    again(name)
    return Cost(time.perf_counter() - wall, time.process_time() - cpu)


def _read(site: Site, epd: Client, name: str, reads: int) -> Cost:
    """The mean of a block of reads over one kept connection, as Decode's scheduler does them."""
    processes = list(site.processes().values())
    before, wall, cpu = _spent(processes), time.perf_counter(), time.process_time()
    for _ in range(reads):
        epd.handoff(name)
    seconds = time.perf_counter() - wall
    spent = time.process_time() - cpu + _spent(processes) - before
    return Cost(seconds / reads, spent / reads)


def _spent(processes: Sequence[psutil.Process]) -> float:
    """CPU seconds that processes have used, all their threads together."""
    return sum(times.user + times.system for times in (process.cpu_times() for process in processes))


def _median(side: Side, of: Callable[[Cost], float]) -> float:
    pairs = zip(side.recomputed, side.reads, strict=True)
    return statistics.median(of(done) / of(read) for done, read in pairs)
