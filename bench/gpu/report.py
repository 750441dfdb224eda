"""Runs the sections, and prints them as one document or as the tables of docs/performance.md."""

from __future__ import annotations

import json
import logging
import sys
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import torch

from bench.gpu.forwards import COUNTS, measure_tower
from bench.gpu.overlap import measure_overlap
from bench.gpu.preprocessing import FAMILIES, IMAGES, images, measure_preprocessing
from bench.gpu.target import Target, measure_limit
from bench.gpu.towers import TINY_TOWERS, TOWERS, Tower
from gpu_worker.engine.device import is_device_lost

if TYPE_CHECKING:
    from _typeshed import DataclassInstance


_log = logging.getLogger(__name__)

Record = TypeVar("Record", bound="DataclassInstance")


#: Short ones first. The limit is always measured, as the towers need it.
SECTIONS = ("limit", "towers", "preprocess", "overlap")

#: Towers of the overlap section, and the images of a batch for each.
_OVERLAPPED = {"dinov2-small": 16, "qwen2.5-vl-7b": 4, "dinov2": 4, "qwen2.5-vl": 2}


_MIB = 1 << 20
_TOWER_HEADS = "tower, items, eager ms, replay ms, speed-up, items/s, TFLOP/s, of the limit, difference"
_MEMORY_HEADS = "tower, parameters, weights MiB, graphs MiB, eager peak MiB"
_PREPROCESS_HEADS = "family, image, device ms, upload ms, CPU ms, threads, Pillow ms, speed-up"
_OVERLAP_HEADS = (
    "tower, items, stage ms, compute ms, write ms, wall ms, wall / slowest, items/s, device MiB, pinned MiB"
)


class Course:
    """Runs cases while there is time, prints each on standard error, and keeps what went wrong.

    A run that is killed has printed its figures up to then.
    """

    def __init__(self, seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._begun = clock()
        self._end = self._begun + seconds
        self._lost = False
        self.left_out: list[str] = []
        self.failed: dict[str, str] = {}

    @property
    def seconds(self) -> float:
        """Seconds since the start."""
        return self._clock() - self._begun

    def run(self, name: str, case: Callable[[], Record]) -> list[Record]:
        """The result of a case, as a list of one. Empty if it failed or there was no time for it."""
        if self._lost or self._clock() >= self._end:
            self.left_out.append(name)
            return []
        try:
            record = case()
        except Exception as error:
            _log.exception("%s failed", name)
            self.failed[name] = f"{type(error).__name__}: {error}"
            self._lost = is_device_lost(error)
            return []
        sys.stderr.write(f"{self.seconds:6.1f} s  {name}  {json.dumps(asdict(record))}\n")
        sys.stderr.flush()
        return [record]


def measure(target: Target, course: Course, sections: Collection[str], folder: Path) -> dict[str, Any]:
    """Run the sections within the course's time. ``folder`` should be in memory."""
    towers = TINY_TOWERS if target.self_test else TOWERS
    limits = course.run("limit", partial(measure_limit, target))
    tflops = limits[0].tflops if limits else None
    document: dict[str, Any] = {"limit": asdict(limits[0]) if limits else None}
    if "towers" in sections:
        document["towers"] = _towers(towers, target, course, tflops)
    if "preprocess" in sections:
        document["preprocess"] = _preprocess(target, course)
    if "overlap" in sections:
        document["overlap"] = _overlaps(towers, target, course, folder)
    return _heading(target) | document | _ending(course)


def _towers(
    towers: Sequence[Tower], target: Target, course: Course, tflops: float | None
) -> list[dict[str, Any]]:
    counts = (1, 2) if target.self_test else COUNTS
    return [
        asdict(figures)
        for tower in towers
        for figures in course.run(
            f"tower {tower.name}", partial(measure_tower, tower, target, tflops, counts)
        )
    ]


def _preprocess(target: Target, course: Course) -> list[dict[str, Any]]:
    return [
        asdict(figures)
        for family in FAMILIES
        for size in images(target)
        for figures in course.run(
            f"preprocess {family} {size}",
            partial(measure_preprocessing, family, size, target),
        )
    ]


def _overlaps(towers: Sequence[Tower], target: Target, course: Course, folder: Path) -> list[dict[str, Any]]:
    size = (108, 192) if target.self_test else IMAGES["1080p"]
    return [
        asdict(figures)
        for tower in towers
        if tower.name in _OVERLAPPED
        for figures in course.run(
            f"overlap {tower.name}",
            partial(measure_overlap, tower, size, _OVERLAPPED[tower.name], target, folder),
        )
    ]


def _heading(target: Target) -> dict[str, Any]:
    return {
        "device": str(target.device),
        "device_name": target.name,
        "self_test": target.self_test,
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
    }


def _ending(course: Course) -> dict[str, Any]:
    return {"left_out": course.left_out, "failed": course.failed, "seconds": round(course.seconds, 1)}


def as_text(document: Mapping[str, Any]) -> str:
    """Markdown: one line about the run, then a table for each measured section."""
    parts = [_first_line(document), *_sections(document)]
    parts += [f"Left out for want of time: {name}" for name in document["left_out"]]
    parts += [f"Failed: {name}: {error}" for name, error in document["failed"].items()]
    return "\n\n".join(parts) + "\n"


def _first_line(document: Mapping[str, Any]) -> str:
    ran = f"{document['device_name']}, torch {document['torch']}, {document['seconds']:.0f} s"
    limit = document["limit"]
    line = f"SELF-TEST, no figure of a GPU: {ran}." if document["self_test"] else f"{ran}."
    if limit is None:
        return line
    return (
        f"{line} Limits: {limit['tflops']:.1f} TFLOP/s in {limit['dtype']}, "
        f"{limit['upload_gb_per_s']:.1f} GB/s up, {limit['download_gb_per_s']:.1f} GB/s down."
    )


def _sections(document: Mapping[str, Any]) -> Iterable[str]:
    if towers := document.get("towers"):
        yield _table(_TOWER_HEADS, (_batch(tower, one) for tower in towers for one in tower["batches"]))
        yield _table(_MEMORY_HEADS, map(_memory, towers))
    if preprocess := document.get("preprocess"):
        yield _table(_PREPROCESS_HEADS, map(_preprocessing, preprocess))
    if overlap := document.get("overlap"):
        yield _table(_OVERLAP_HEADS, map(_overlap, overlap))


def _batch(tower: Mapping[str, Any], one: Mapping[str, Any]) -> list[str]:
    return [
        tower["tower"],
        str(one["items"]),
        f"{one['eager_ms']:.2f}",
        f"{one['replay_ms']:.2f}",
        f"{one['speed_up']:.2f}",
        f"{one['items_per_s']:.0f}",
        f"{one['tflops']:.1f}",
        f"{one['share_of_limit']:.0%}",
        f"{one['largest_difference']:.1e}",
    ]


def _memory(tower: Mapping[str, Any]) -> list[str]:
    memory = tower["memory"]
    sizes = [_mib(memory[name]) for name in ("weights", "graphs", "eager_peak")]
    return [tower["tower"], f"{tower['parameters'] / 1e6:.0f} M", *sizes]


def _preprocessing(one: Mapping[str, Any]) -> list[str]:
    times = [f"{one[name]:.2f}" for name in ("device_ms", "upload_ms", "cpu_ms")]
    rest = [str(one["cpu_threads"]), f"{one['pillow_resize_ms']:.2f}", f"{one['speed_up']:.1f}"]
    return [one["family"], one["image"], *times, *rest]


def _overlap(one: Mapping[str, Any]) -> list[str]:
    times = [f"{one[name]:.1f}" for name in ("stage_ms", "compute_ms", "write_ms", "wall_ms")]
    rest = [f"{one['efficiency']:.2f}", f"{one['items_per_s']:.0f}"]
    return [
        one["tower"],
        str(one["items"]),
        *times,
        *rest,
        _mib(one["device_peak"]),
        _mib(one["pinned_peak"]),
    ]


def _mib(nbytes: int | None) -> str:
    return "-" if nbytes is None else f"{nbytes / _MIB:.1f}"


def _table(heads: str, rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table; ``heads`` are separated by commas."""
    names = heads.split(", ")
    lines = [names, ["---"] * len(names), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
