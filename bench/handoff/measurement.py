"""Rounds of reads and recomputations, alternating, so that a busy machine affects both.

The CPU of a read is that of all processes it needs: the client (this process), the API and the store, over a
block of reads, with their idle work. The CPU of a recomputation is that of this process alone, without the
web server's.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import psutil

from bench.cli import folder_in_memory
from bench.handoff.recompute import FILM, PHOTO, Recompute, make_media, web_server
from bench.handoff.site import Site, running_site
from epd.client import Client
from epd.contracts.handoff import Handoff

_WARM_UP = 100


@dataclass(frozen=True, slots=True)
class Cost:
    """Seconds of one read, or of one recomputation."""

    wall: float
    cpu: float


@dataclass(frozen=True, slots=True)
class Side:
    """Reads and recomputations of one file's metadata, by round; ``nbytes`` is the handoff's size."""

    reads: tuple[Cost, ...]
    recomputed: tuple[Cost, ...]
    nbytes: int

    @property
    def wall_ratio(self) -> float:
        """How many times as long the recomputation takes, the median of the rounds."""
        return _median(self, lambda cost: cost.wall)

    @property
    def cpu_ratio(self) -> float:
        """How many times as much CPU it takes."""
        return _median(self, lambda cost: cost.cpu)


def measure(rounds: int, reads: int, seconds: int) -> dict[str, Side]:
    """Both sides by file name. A round has ``reads`` of each file; the video lasts ``seconds``.

    Raises:
        RuntimeError: a part of the stack died, or the two grids of a file differ.
        EncodeFailed: a file could not be encoded.
    """
    with folder_in_memory("epd-handoff-") as folder:
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
    """Raise ``RuntimeError`` if the grids differ: then one side leaves work out."""
    known = handoff.items[0].metadata.grid_thw
    if known is None or tuple(grid) != known:
        raise RuntimeError(f"grids {tuple(grid)} and {known}: the two sides do not do the same")


def _once(again: Callable[[str], object], name: str) -> Cost:
    wall, cpu = time.perf_counter(), time.process_time()
    again(name)
    return Cost(time.perf_counter() - wall, time.process_time() - cpu)


def _read(site: Site, epd: Client, name: str, reads: int) -> Cost:
    """The mean of a block of reads over one kept connection, as from Decode's scheduler."""
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
