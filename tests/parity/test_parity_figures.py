"""The parity figures themselves: what misses a bar is named, and the worst value is the one that counts."""

from __future__ import annotations

import json
import math
import sys
from dataclasses import replace

import pytest
import torch

from tests.parity.__main__ import main
from tests.parity.comparison import ParityFigures
from tests.parity.preprocess_figures import PixelFigures, SizeFigures
from tests.parity.row_figures import BucketFigures, cosine, relative_error, row_cosine
from tests.parity.table import HEAD, table_of

BUCKET = BucketFigures(equal=True, batches=4, buckets=1, replayed=4)
GOOD = ParityFigures(
    fp32_error=1e-6,
    bf16_cosine=0.9999,
    bf16_row_cosine=0.99,
    packed_difference=1e-6,
    bucket_fp32=BUCKET,
    bucket_bf16=BUCKET,
    sizes=SizeFigures(tried=500, mismatches=0),
    pixels=PixelFigures(values=10, within_one=1.0, most=1.0),
    mel_difference=1e-5,
)


@pytest.mark.parametrize(
    "worse",
    [
        {"fp32_error": 2e-4},
        {"fp32_error": float("nan")},
        {"bf16_cosine": 0.998},
        {"packed_difference": 2e-5},
        {"bucket_fp32": replace(BUCKET, equal=False)},
        {"bucket_bf16": replace(BUCKET, equal=False)},
        {"sizes": SizeFigures(tried=500, mismatches=1)},
        {"pixels": PixelFigures(values=10, within_one=0.99, most=2.0)},
        {"pixels": PixelFigures(values=10, within_one=1.0, most=2.5)},
        {"mel_difference": 2e-4},
    ],
)
def test_what_misses_its_bar_is_named(worse: dict[str, object]) -> None:
    assert GOOD.missed() == []
    assert replace(GOOD, **worse).missed() == list(worse)  # type: ignore[arg-type]


def test_the_worst_part_of_a_row_counts() -> None:
    wanted = torch.tensor([[100.0, 1.0], [50.0, 1.0]])
    got = wanted + torch.tensor([[0.0, 0.0], [0.0, 0.1]])
    assert relative_error(got, wanted) == pytest.approx(0.001)
    assert relative_error(got, wanted, parts=2) == pytest.approx(0.1)


def test_a_row_that_is_no_number_is_not_passed_over() -> None:
    wanted = torch.ones(2, 4)
    got = wanted.clone()
    got[1, 3] = float("nan")
    assert math.isnan(relative_error(got, wanted, parts=2))


def test_one_turned_row_shows_in_the_row_cosine_alone() -> None:
    wanted = torch.ones(1000, 2)
    got = wanted.clone()
    got[7] = torch.tensor([1.0, -1.0])
    assert cosine(got, wanted) > 0.998
    assert row_cosine(got, wanted) == pytest.approx(0.0)


def test_the_table_has_a_cell_for_every_figure() -> None:
    without = replace(GOOD, pixels=None, mel_difference=None)
    for line in table_of({"one": GOOD, "other": without}).splitlines():
        assert line.count("|") == len(HEAD) + 1


def test_the_command_prints_one_object(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["--json", "--only", "clip", "--sizes", "2", "--images", "1"]
    monkeypatch.setattr(sys, "argv", ["tests.parity", *arguments])
    threads = torch.get_num_threads()
    try:
        assert main() == 0
    finally:
        torch.set_num_threads(threads)
    document = json.loads(capsys.readouterr().out)
    assert document["missed"] == {}
    assert list(document["figures"]) == ["clip"]
