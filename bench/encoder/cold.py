"""Cold images: distinct photos through the whole stack, against the plain pipeline, in alternating rounds."""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from bench.encoder.asking import ask_all
from bench.encoder.plain import Plain, cpu_seconds_alone, running_plain
from bench.encoder.result import Bar, Result, Step, progress_bar, table
from bench.encoder.site.costs import Costs, add_costs
from bench.encoder.site.device import DeviceModel
from bench.encoder.site.files import Kind
from bench.encoder.site.media import running_media
from bench.encoder.site.stack import Site, running_site

_DEVICE = DeviceModel()
_IMAGES = 200
#: One of so many images is also downloaded and decoded alone.
_ALONE = 5
#: Seconds after the last answer in which acks and events still count as its cost.
_SETTLE = 0.3


@dataclass(frozen=True, slots=True)
class Shape:
    """Images of a request, and how many requests are under way at once."""

    name: str
    items: int
    at_once: int


_SHAPES = (Shape("four", items=4, at_once=12), Shape("single", items=1, at_once=48))


@dataclass(slots=True)
class Rounds:
    """What was measured with one shape, round by round, each of so many images."""

    images: int
    epd: list[float] = field(default_factory=list)  #: images a second
    plain: list[float] = field(default_factory=list)  #: images a second
    plain_cpu: list[float] = field(default_factory=list)  #: seconds an image
    costs: list[Costs] = field(default_factory=list)
    alone_cpu: list[float] = field(default_factory=list)  #: seconds an image

    @property
    def over_plain(self) -> float:
        """Images a second, relative to the plain pipeline's."""
        return statistics.median(self.epd) / statistics.median(self.plain)

    @property
    def cpu_over_plain(self) -> float:
        """CPU seconds an image, relative to the plain pipeline's."""
        total = statistics.median(sum(one.cpu.values()) for one in self.costs) / self.images
        return total / statistics.median(self.plain_cpu)

    @property
    def limit(self) -> float:
        """Images a second if the cores did nothing but download and decode."""
        return (os.cpu_count() or 1) / statistics.median(self.alone_cpu)

    @property
    def vs_limit(self) -> float:
        """Images a second, relative to the limit."""
        return statistics.median(self.epd) / self.limit

    def figures(self) -> dict[str, Any]:
        """All of it, with the rounds as they were."""
        return {
            "over_plain": round(self.over_plain, 3),
            "cpu_over_plain": round(self.cpu_over_plain, 2),
            "vs_limit": round(self.vs_limit, 3),
            "epd_images_per_s": [round(rate, 1) for rate in self.epd],
            "plain_images_per_s": [round(rate, 1) for rate in self.plain],
            "limit_images_per_s": round(self.limit, 1),
            "an_image": add_costs(self.costs).an_item(self.images * len(self.costs)),
            "plain_cpu_ms": [round(1000 * cpu, 2) for cpu in self.plain_cpu],
            "alone_cpu_ms": [round(1000 * cpu, 2) for cpu in self.alone_cpu],
        }


def measure(options: argparse.Namespace) -> Result:
    """Both shapes with a device that costs nothing."""
    with progress_bar("cold", len(_SHAPES) * (options.rounds + 1) + 1) as step:
        return _result(compare(_IMAGES, options.rounds, step))


def compare(images: int, rounds: int, step: Step) -> dict[str, Rounds]:
    """Rounds of so many images by shape; the first round of each side is not counted."""
    with running_media() as media, running_plain() as plain:
        step("starting a stack")
        with running_site(media, _DEVICE) as site:
            return {
                shape.name: _alternate(shape, site, plain, Rounds(images), rounds, step) for shape in _SHAPES
            }


def _alternate(shape: Shape, site: Site, plain: Plain, rounds: Rounds, count: int, step: Step) -> Rounds:
    _epd_round(shape, site, rounds.images)
    plain.run(site.media.new_urls(Kind.FULL_HD, rounds.images))
    cpu_seconds_alone(site.media.new_urls(Kind.FULL_HD, 2))
    step(f"{shape.name}, warm")
    for number in range(count):
        rate, costs = _epd_round(shape, site, rounds.images)
        rounds.epd.append(rate)
        rounds.costs.append(costs)
        rate, cpu = plain.run(site.media.new_urls(Kind.FULL_HD, rounds.images))
        rounds.plain.append(rate)
        rounds.plain_cpu.append(cpu)
        rounds.alone_cpu.append(cpu_seconds_alone(site.media.new_urls(Kind.FULL_HD, rounds.images // _ALONE)))
        step(f"{shape.name}, round {number + 1} of {count}")
    return rounds


def _epd_round(shape: Shape, site: Site, images: int) -> tuple[float, Costs]:
    """Images a second, and what they cost."""
    items = [{"type": "image", "url": url} for url in site.media.new_urls(Kind.FULL_HD, images)]
    requests = [items[start : start + shape.items] for start in range(0, images, shape.items)]
    meter = site.meter()
    seconds = ask_all(site.port, requests, shape.at_once)
    time.sleep(_SETTLE)
    return images / seconds, meter.costs()


def _result(rounds: dict[str, Rounds]) -> Result:
    four, single = rounds["four"], rounds["single"]
    bars = (
        Bar("cold_over_plain", round(four.over_plain, 3), 0.60),
        Bar("cold_over_plain_single", round(single.over_plain, 3), 0.50),
        Bar("cpu_over_plain", round(four.cpu_over_plain, 2), 1.6, at_least=False),
        Bar("vs_limit", round(four.vs_limit, 3), 0.5),
    )
    figures = {name: one.figures() for name, one in rounds.items()}
    cpu = {name: one["an_image"]["cpu_ms"] for name, one in figures.items()}
    return Result({"device": str(_DEVICE), "cpu_ms_an_image": cpu} | figures, _text(figures), bars)


def _text(figures: dict[str, Any]) -> str:
    rows: list[Sequence[object]] = []
    for name, one in figures.items():
        cpu = one["an_image"]["cpu_ms"]
        rows.append((f"epd, {name}", one["epd_images_per_s"], one["an_image"]["cpu_ms_total"], cpu))
        rows.append((f"plain, {name}", one["plain_images_per_s"], one["plain_cpu_ms"], ""))
        rows.append(("limit", one["limit_images_per_s"], one["alone_cpu_ms"], ""))
    header = ("", "images/s", "CPU ms an image", "by part")
    return f"{_IMAGES} distinct 1080p JPEGs a round, 50 ms away; {_DEVICE}\n{table(header, rows)}"
