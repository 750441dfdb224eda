"""Parity figures as a Markdown table, as docs/parity.md shows them."""

from __future__ import annotations

from collections.abc import Mapping

from tests.parity.comparison import ParityFigures
from tests.parity.row_figures import BucketFigures

HEAD = (
    "checkpoint",
    "fp32 error",
    "bf16 cosine",
    "of a row",
    "packed - single",
    "bit-equal fp32",
    "bit-equal bf16",
    "wrong sizes",
    "pixels within 1",
    "most levels",
    "log-mel",
)


def table_of(figures: Mapping[str, ParityFigures]) -> str:
    """One row a checkpoint; a dash where a figure is not of its kind of media."""
    lines = [HEAD, ("---",) * len(HEAD), *(_row(name, one) for name, one in figures.items())]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def _row(name: str, one: ParityFigures) -> tuple[str, ...]:
    pixels = one.pixels
    return (
        name,
        f"{one.fp32_error:.1e}",
        f"{one.bf16_cosine:.5f}",
        f"{one.bf16_row_cosine:.5f}",
        f"{one.packed_difference:.1e}",
        _bits(one.bucket_fp32),
        _bits(one.bucket_bf16),
        f"{one.sizes.mismatches} of {one.sizes.tried}",
        f"{pixels.within_one:.2%}" if pixels else "-",
        f"{pixels.most:.4f}" if pixels else "-",
        "-" if one.mel_difference is None else f"{one.mel_difference:.1e}",
    )


def _bits(one: BucketFigures) -> str:
    return f"{'yes' if one.equal else 'NO'} ({one.batches} in {one.buckets})"
