"""Comparisons: all sides of one stay up together, are asked in turns, and rest while another is asked."""

from __future__ import annotations

import itertools
import random
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

from bench.cli import folder_in_memory
from bench.encoder.result import Bar
from bench.encoder.site.device import DeviceModel
from bench.encoder.site.files import Kind
from bench.encoder.site.media import Media, running_media
from bench.peers.checkpoints import make_clip, make_dinov2
from bench.peers.environments import Peer, PeerError
from bench.peers.load import IMAGES, Figures, Round, drive, summary
from bench.peers.sides import EPD, Side, Work, running_epd, running_peer

#: Seconds before each answer of the media server, as from a server far away.
DELAY = 0.05
#: Files of the repeated load, and of the load whose requests hold the files.
FILES = 16
_DIGITS = 3
#: Seconds of the rounds before the first one that counts.
_WARM_UP = 1.0


class Load(StrEnum):
    """What requests hold."""

    COLD = "cold"  #: URLs of files that nobody has seen
    REPEATED = "repeated"  #: the same URLs again and again
    FILES = "files"  #: the files themselves, in base64


@dataclass(frozen=True, slots=True)
class Comparison:
    """What is encoded, by whom. ``layouts`` were the fastest in short trials (``sides.Work``)."""

    name: str
    family: str
    make: Callable[[Path], None]
    peers: tuple[Peer, ...]
    device: DeviceModel | None
    layouts: Mapping[Peer, tuple[int, int]]
    least: float  #: of epd's cold rate over the best peer's
    least_repeated: float | None = None


COMPARISONS = (
    Comparison(
        "real", "dinov2", make_dinov2, (Peer.LITSERVE, Peer.MOSEC), None,
        {Peer.LITSERVE: (2, 6), Peer.MOSEC: (2, 4)}, least=1.0, least_repeated=10.0,
    ),
    Comparison("clip", "clip", make_clip, (Peer.INFINITY,), None, {}, least=1.0, least_repeated=10.0),
    Comparison(
        "device", "clip", make_clip, tuple(Peer), DeviceModel(30, 1),
        {Peer.LITSERVE: (2, 6), Peer.MOSEC: (4, 12)}, least=1.2,
    ),
)  # fmt: skip


@dataclass(slots=True)
class Outcome:
    """The figures of a comparison by side and load, and why a peer is missing."""

    comparison: Comparison
    figures: dict[str, dict[Load, Figures]] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)

    def best_peer(self, load: Load) -> Figures | None:
        """The peer with the highest rate."""
        found = [loads[load] for name, loads in self.figures.items() if name != EPD]
        return max(found, key=lambda one: one.rate, default=None)

    def bars(self) -> tuple[Bar, ...]:
        """Bounds of epd's figures over the best peer's; none without a peer."""
        name, epd = self.comparison.name, self.figures[EPD]
        cold, repeated = self.best_peer(Load.COLD), self.best_peer(Load.REPEATED)
        if cold is None or repeated is None:
            return ()
        bars = [Bar(f"{name}_over_best_peer", _ratio(epd[Load.COLD].rate, cold.rate), self.comparison.least)]
        if self.comparison.device is None:
            p99 = _ratio(epd[Load.COLD].p99, cold.p99)
            bars.append(Bar(f"{name}_p99_over_best_peer", p99, 1.0, at_least=False))
        if self.comparison.least_repeated:
            ratio = _ratio(epd[Load.REPEATED].rate, repeated.rate)
            bars.append(Bar(f"{name}_repeated_over_best_peer", ratio, self.comparison.least_repeated))
        return tuple(bars)

    def document(self) -> dict[str, Any]:
        """For the JSON output."""
        rounded = {
            name: {
                load.value: {key: round(value, _DIGITS) for key, value in asdict(figures).items()}
                for load, figures in loads.items()
            }
            for name, loads in self.figures.items()
        }
        device = str(self.comparison.device) if self.comparison.device else None
        return {"device": device, "missing": self.missing, **rounded}

    def text(self) -> str:
        """A table for a terminal."""
        what = self.comparison.device or f"{self.comparison.family}, random weights, float32"
        lines = [
            f"{self.comparison.name}: {what}",
            "  side       load       images/s   p50 s   p99 s  CPU ms   requests",
        ]
        lines += [
            f"  {name:<10} {load:<10} {one.rate:8.1f} {one.p50:7.2f} {one.p99:7.2f} {one.cpu_ms:7.1f}"
            f" {one.requests:10}"
            for name, loads in self.figures.items()
            for load, one in loads.items()
        ]
        lines += [f"  {name} did not run: {why}" for name, why in self.missing.items()]
        return "\n".join(lines) + "\n"


def measure(
    comparison: Comparison,
    only: Sequence[Peer],
    *,
    rounds: int,
    seconds: float,
    threads: int,
    say: Callable[[str], None],
) -> Outcome:
    """Run a comparison with the peers of ``only``, so many rounds of each load and side.

    Args:
        comparison: what is compared.
        only: peers to run.
        rounds: counted rounds.
        seconds: of each round, before the answers to the last requests.
        threads: torch threads of each side.
        say: takes a line about each step.
    """
    outcome = Outcome(comparison)
    with ExitStack() as stack:
        folder = stack.enter_context(folder_in_memory("epd-peers-"))
        checkpoint = folder / comparison.family
        comparison.make(checkpoint)
        work = Work(comparison.family, checkpoint, folder, threads, comparison.device, comparison.layouts)
        media = stack.enter_context(running_media(DELAY))
        sides = {EPD: stack.enter_context(running_epd(work, media))}
        for peer in (one for one in comparison.peers if one in only):
            try:
                sides[peer] = stack.enter_context(running_peer(peer, work, say))
            except PeerError as error:
                outcome.missing[peer] = str(error)
        turns = _Turns(sides, media)
        for load in Load:
            names = [name for name in sides if load is not Load.FILES or name != EPD]
            found = _rounds(turns, load, names, rounds, seconds, say)
            for name in names:
                outcome.figures.setdefault(name, {})[load] = summary(found[name])
    return outcome


class _Turns:
    """Asks one side at a time."""

    def __init__(self, sides: Mapping[str, Side], media: Media) -> None:
        self._sides, self._media = sides, media
        self._urls = media.new_urls(Kind.FULL_HD, FILES)
        self._files = [_download(url) for url in self._urls]

    def ask(self, name: str, load: Load, seconds: float) -> Round:
        """A round with one side, while the others rest."""
        for other, side in self._sides.items():
            if other != name:
                side.pause()
        side = self._sides[name]
        side.resume()
        return drive(side.target, self._bodies(side, load), seconds)

    def resume(self) -> None:
        """Let all continue, so that they can end."""
        for side in self._sides.values():
            side.resume()

    def _bodies(self, side: Side, load: Load) -> Callable[[], bytes]:
        if load is Load.COLD:
            return lambda: side.of_urls(self._media.new_urls(Kind.FULL_HD, IMAGES))
        if load is Load.REPEATED:
            return lambda: side.of_urls(random.sample(self._urls, IMAGES))
        # Made before the round: encoding them costs more than sending them.
        made = itertools.cycle([side.of_files(self._files[at::IMAGES][:IMAGES]) for at in range(IMAGES)])
        return lambda: next(made)


def _rounds(
    turns: _Turns, load: Load, names: Sequence[str], rounds: int, seconds: float, say: Callable[[str], None]
) -> dict[str, list[Round]]:
    """The rounds by side. Each begins with another side, so that none always follows the same one."""
    found: dict[str, list[Round]] = {name: [] for name in names}
    for name in names:
        turns.ask(name, load, _WARM_UP)
    for number in range(rounds):
        first = number % len(names)
        for name in (*names[first:], *names[:first]):
            one = turns.ask(name, load, seconds)
            found[name].append(one)
            say(f"{load} {number + 1}/{rounds} {name}: {one.rate:.1f} images/s")
    turns.resume()
    return found


def _download(url: str) -> bytes:
    with urllib.request.urlopen(url) as answer:
        body: bytes = answer.read()
    return body


def _ratio(one: float, other: float) -> float:
    return round(one / other, _DIGITS)
