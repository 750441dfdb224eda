"""The whole run as one document: which sections, in which order, and what is said of it."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import torch

from bench.gpu.course import Course
from bench.gpu.forwards import COUNTS, measure_tower
from bench.gpu.limit import measure_limit
from bench.gpu.overlap import measure_overlap
from bench.gpu.preprocessing import FAMILIES, PICTURES, measure_preprocessing, pictures
from bench.gpu.target import Target
from bench.gpu.towers import TINY_TOWERS, TOWERS, Tower

#: The cheap and the short ones first; the limit is needed by the towers and is always measured.
SECTIONS = ("limit", "towers", "preprocess", "overlap")

#: Towers of the overlap, and how many pictures a batch of each has.
_OVERLAPPED = {"dinov2-small": 16, "qwen2.5-vl-7b": 4, "dinov2": 4, "qwen2.5-vl": 2}


def measure(target: Target, course: Course, sections: Collection[str], folder: Path) -> dict[str, Any]:
    """Run the sections within the course's time; ``folder`` should be in memory."""
    towers = TINY_TOWERS if target.self_test else TOWERS
    limits = course.run("limit", partial(measure_limit, target))
    tflops = limits[0].tflops if limits else None
    document: dict[str, Any] = {"limit": asdict(limits[0]) if limits else None}
    if "towers" in sections:
        document["towers"] = _towers(towers, target, course, tflops)
    if "preprocess" in sections:
        document["preprocess"] = _preprocess(target, course)
    if "overlap" in sections:
        document["overlap"] = _overlap(towers, target, course, folder)
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
        for size in pictures(target)
        for figures in course.run(
            f"preprocess {family} {size}",
            partial(measure_preprocessing, family, size, target),
        )
    ]


def _overlap(towers: Sequence[Tower], target: Target, course: Course, folder: Path) -> list[dict[str, Any]]:
    size = (108, 192) if target.self_test else PICTURES["1080p"]
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
