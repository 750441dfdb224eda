"""An engine with a gate before its forwards, for tests of what happens around one."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from gpu_worker.encoders.base import Encoder, Inputs
from gpu_worker.engine.batcher import Budget
from gpu_worker.engine.device import CpuDevice, Device
from gpu_worker.engine.engine import Engine
from gpu_worker.engine.forward import EagerRunner, Runner
from gpu_worker.engine.slot import Encoded, Outcome, Slot
from tests.unit.engine.engine_watcher import Watcher
from tests.unit.engine.slot_makers import make_slot


class GatedRunner(EagerRunner):
    """A runner, held back by a gate, failing for batches that ``fails`` picks."""

    def __init__(self, inner: Runner | None = None) -> None:
        self.inner = inner or EagerRunner()
        self.gate = threading.Event()
        self.gate.set()
        self.entered = threading.Event()
        self.sizes: list[int] = []
        self.fails: Callable[[Tensor], Exception | None] = lambda _images: None

    def run(self, encoder: Encoder, inputs: Inputs) -> Tensor:
        self.entered.set()
        assert self.gate.wait(20)
        images = inputs.tensors["images"]
        self.sizes.append(len(images))
        error = self.fails(images)
        if error is not None:
            raise error
        return self.inner.run(encoder, inputs)

    def warm_up(self, encoder: Encoder) -> None:
        self.inner.warm_up(encoder)


class Rig:
    """An engine of batches of four, with its parts."""

    def __init__(
        self, encoder: Encoder, folder: Path, device: Device | None = None, runner: Runner | None = None
    ) -> None:
        self.encoder, self.folder = encoder, folder
        self.watcher, self.runner = Watcher(), GatedRunner(runner)
        self.engine = Engine(
            {"eye": encoder}, budget=Budget(max_items=4, max_cost=10_000), device=device or CpuDevice(),
            observer=self.watcher, runner=self.runner,
        )  # fmt: skip
        self.engine.start(30)

    def end(self) -> None:
        """Stop the engine, whatever it is held at."""
        self.runner.gate.set()
        self.engine.stop(20)

    def submit(self, *values: int) -> list[Slot]:
        slots = [self.slot(value) for value in values]
        for slot in slots:
            assert self.engine.submit(slot)
        return slots

    def slot(self, value: int, *, height: int = 30, width: int = 40, **fields: object) -> Slot:
        path = self.folder / f"blob-{time.monotonic_ns()}"
        path.write_bytes(bytes([value]) * (height * width * 3))
        return make_slot(path=path, height=height, width=width, **fields)  # type: ignore[arg-type]

    def hold_one_batch(self) -> Slot:
        """Submit a slot and hold the device at it, so that what follows has to queue."""
        self.runner.gate.clear()
        self.runner.entered.clear()
        first = self.slot(1)
        self.engine.submit(first)
        assert self.runner.entered.wait(20)
        return first


def rows_of(outcome: Outcome) -> Tensor:
    assert isinstance(outcome, Encoded), outcome
    flat = torch.frombuffer(bytearray(outcome.rows), dtype=torch.float32)
    return flat.view(outcome.plan.tokens, outcome.hidden)


def wait_until(condition: Callable[[], bool], within: float = 20.0) -> None:
    end = time.monotonic() + within
    while not condition():
        assert time.monotonic() < end, "not in time"
        time.sleep(0.002)
