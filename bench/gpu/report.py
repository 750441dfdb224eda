"""The document as tables, in the form that docs/performance.md takes them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

_MIB = 1 << 20
_TOWER_HEADS = "tower, items, eager ms, replay ms, speed-up, items/s, TFLOP/s, of the limit, difference"
_MEMORY_HEADS = "tower, parameters, weights MiB, graphs MiB, eager peak MiB"
_PREPROCESS_HEADS = "family, picture, device ms, upload ms, CPU ms, threads, Pillow ms, speed-up"
_OVERLAP_HEADS = (
    "tower, items, stage ms, compute ms, write ms, wall ms, wall / slowest, items/s, device MiB, pinned MiB"
)


def as_text(document: Mapping[str, Any]) -> str:
    """Markdown: one line on the run, then a table for each section that was measured."""
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
    return [one["family"], one["picture"], *times, *rest]


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
    """``heads`` are separated by commas."""
    names = heads.split(", ")
    lines = [names, ["---"] * len(names), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
