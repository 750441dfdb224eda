"""The engine on a CUDA device: copies on their own streams give the same rows as the processor does."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from epd.config import EncoderConfig
from gpu_worker.encoders.registry import load_encoder
from gpu_worker.engine.devices import open_device
from gpu_worker.engine.engine import Engine
from gpu_worker.engine.planner import Budget
from gpu_worker.engine.slot import Encoded, Slot
from tests.unit.engine_watcher import Watcher
from tests.unit.slot_makers import make_slot
from tests.unit.tiny_checkpoints import tiny_folder

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")

SIZES = [(30, 40), (300, 200), (224, 224), (1080, 1920)]


def pictures(folder: Path) -> list[Slot]:
    """Random pictures of several sizes, each eight times."""
    folder.mkdir(exist_ok=True)
    generator = torch.Generator().manual_seed(3)
    slots = []
    for index, (height, width) in enumerate(SIZES * 8):
        data = torch.randint(0, 256, (height, width, 3), dtype=torch.uint8, generator=generator)
        path = folder / f"r-{index}"
        path.write_bytes(data.numpy().tobytes())
        slots.append(make_slot(path=path, slot_id=f"{index}", height=height, width=width))
    return slots


def encode_all(slots: list[Slot], folder: Path, device: str) -> dict[str, torch.Tensor]:
    config = EncoderConfig(
        family="dinov2", path=tiny_folder("dinov2", folder), dtype="float32", device=device
    )
    watcher = Watcher()
    engine = Engine(
        {"eye": load_encoder("eye", config)}, budget=Budget(max_items=8, max_cost=100_000),
        device=open_device(device), observer=watcher,
    )  # fmt: skip
    engine.start(120)
    for slot in slots:
        engine.submit(slot)
    watcher.wait(len(slots), within=120)
    engine.stop(60)
    rows = {}
    for name, outcome in watcher.outcomes.items():
        assert isinstance(outcome, Encoded), outcome
        assert all(seconds >= 0 for seconds in outcome.timings.values())
        flat = torch.frombuffer(bytearray(outcome.rows), dtype=torch.float32)
        rows[name] = flat.view(outcome.plan.tokens, outcome.hidden)
    return rows


def test_rows_equal_those_of_the_processor(tmp_path: Path) -> None:
    slots = pictures(tmp_path / "blobs")
    on_gpu, on_cpu = (encode_all(slots, tmp_path / device[:3], device) for device in ("cuda:0", "cpu"))
    for name, rows in on_cpu.items():
        torch.testing.assert_close(on_gpu[name], rows, rtol=1e-2, atol=1e-2)
