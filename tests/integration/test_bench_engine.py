"""``python -m bench.engine`` runs, its figures belong to what was run, and it leaves nothing behind."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import torch

from bench.engine import resizing
from bench.engine.rig import EngineRig, NotingRunner, Size, load_random
from epd.contracts.errors import EncodeFailed
from tests.integration.transport_kit import ROOT

TINY = Size("tiny", width=16, layers=1, heads=2, side=28)


def test_the_figures_are_measured() -> None:
    """Figures of a loaded test machine say nothing, so only their presence and their kind are checked."""
    done = subprocess.run(
        [sys.executable, "-m", "bench.engine", "--json", "--repeats", "1", "--threads", "1"], cwd=ROOT,
        check=False, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode in {0, 1}, done.stderr
    figures = json.loads(done.stdout)
    assert {"packing_gain", "overhead", "threads"} <= set(figures)
    assert figures["packing_gain"] > 0
    assert figures["overhead"] > -1
    assert figures["overhead_cpu"] > -1
    assert figures["packed_per_s"] > 0


def test_the_noted_batches_hold_every_item_once(tmp_path: Path) -> None:
    torch.set_num_threads(1)
    runner = NotingRunner()
    rig = EngineRig(load_random(TINY, tmp_path), tmp_path, max_items=4, runner=runner)
    try:
        slots = [rig.image(tmp_path / f"p{i}", 30, 40) for i in range(10)]
        assert rig.together(slots) > 0
        sizes = [len(one.tensors["images"]) for one in runner.inputs]
        assert sum(sizes) == 10
        assert max(sizes) <= 4
        runner.inputs.clear()
        rig.one_by_one(slots)
        assert [len(one.tensors["images"]) for one in runner.inputs] == [1] * 10
    finally:
        rig.close()
    assert not list((tmp_path / "embeddings").iterdir())
    assert not [one for one in threading.enumerate() if one.name.startswith("engine-")]


def test_an_item_that_fails_ends_the_measurement(tmp_path: Path) -> None:
    rig = EngineRig(load_random(TINY, tmp_path), tmp_path, max_items=4, runner=NotingRunner())
    try:
        slot = rig.image(tmp_path / "gone", 30, 40)
        slot.path.unlink()
        with pytest.raises(EncodeFailed, match="own items failed"):
            rig.together([slot])
    finally:
        rig.close()


def test_both_ways_of_a_resize_are_timed() -> None:
    figures = resizing.measure(torch.zeros(1, 300, 400, 3, dtype=torch.uint8))
    assert figures.keys() == {"pillow_ms", "tensor_ms"}
    assert all(0 < best <= median for best, median in figures.values())
