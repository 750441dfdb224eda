"""The whole engine on a device: its rows, its captures, and too little memory. ``tests/unit`` runs it too."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import torch

from epd.contracts.errors import EncodeFailed
from epd.contracts.job import Priority
from epd.contracts.media import ItemOptions, RawMedia
from gpu_worker.encoders.base import Encoder
from gpu_worker.engine.batcher import Budget
from gpu_worker.engine.cuda_streams import open_device
from gpu_worker.engine.engine import Engine
from gpu_worker.engine.forward import EagerRunner, Runner
from gpu_worker.engine.graphs.runner import GraphRunner
from gpu_worker.engine.slot import Encoded, Failed, Slot
from tests.gpu.batches import random_media
from tests.gpu.site import Site
from tests.unit.encoders.tiny_checkpoints import raw_audio, raw_image
from tests.unit.engine.engine_watcher import Watcher
from tests.unit.engine.graphs.graph_kit import graph_plan
from tests.unit.engine.slot_makers import NEVER

IMAGES = [raw_image(*size) for size in [(30, 40), (300, 200), (224, 224), (112, 336)]]
_WAIT_SECONDS = 100.0
_numbers = itertools.count()


class Media:
    """Random media in blobs, as slots; the raw tensors are kept."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(exist_ok=True)
        self._folder = folder
        self.raws: dict[str, tuple[RawMedia, torch.Tensor]] = {}

    def slot(self, encoder: Encoder, raw: RawMedia) -> Slot:
        name = f"{next(_numbers)}"
        tensor = random_media(raw, len(self.raws))
        path = self._folder / name
        path.write_bytes(tensor.numpy().tobytes())
        self.raws[name] = (raw, tensor)
        return Slot(
            id=name, encoder=encoder.card.name, raw=raw, path=path, options=ItemOptions(),
            priority=Priority.INTERACTIVE, deadline=NEVER, enqueued=0.0,
        )  # fmt: skip

    def eager_rows(self, encoder: Encoder, name: str) -> torch.Tensor:
        """The rows of one item alone."""
        raw, tensor = self.raws[name]
        plan = encoder.plan(raw, ItemOptions())
        return encoder.forward(encoder.preprocess([tensor.to(encoder.card.device)], [plan])).cpu()


class GatedWatcher(Watcher):
    """Holds the first batch back until the gate is open, so that all later items are queued together."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = threading.Event()

    def still_wanted(self, slots: Sequence[Slot]) -> set[str]:
        assert self.gate.wait(_WAIT_SECONDS)
        return super().still_wanted(slots)


def rows_of(encoder: Encoder, outcome: object) -> torch.Tensor:
    assert isinstance(outcome, Encoded), outcome
    assert all(seconds >= 0 for seconds in outcome.timings.values())
    flat = torch.frombuffer(bytearray(outcome.rows), dtype=getattr(torch, encoder.card.dtype))
    return flat.view(outcome.plan.tokens, outcome.hidden)


def engine_of(site: Site, encoder: Encoder, watcher: Watcher, runner: Runner, items: int) -> Engine:
    engine = Engine(
        {encoder.card.name: encoder}, budget=Budget(max_items=items, max_cost=1 << 30),
        device=open_device(site.device), observer=watcher, runner=runner,
    )  # fmt: skip
    engine.start(_WAIT_SECONDS)
    return engine


def check_engine_rows(
    site: Site,
    family: str,
    folder: Path,
    *,
    captured: bool,
    while_serving: AbstractContextManager[None] | None = None,
) -> None:
    """Many items through staging, packing, forward and download: each has the rows it has alone."""
    encoder, media, watcher = site.encoder(family, folder), Media(folder / "blobs"), Watcher()
    plan = graph_plan(items=4, rows=2048, required=True)
    runner: Runner = GraphRunner(site.even_backend(), plan) if captured else EagerRunner()
    engine = engine_of(site, encoder, watcher, runner, items=4)
    kinds = IMAGES * 5 if encoder.card.audio is None else [raw_audio(16_000 * n) for n in (1, 3, 31)] * 3
    slots = [media.slot(encoder, raw) for raw in kinds]
    with while_serving or nullcontext():
        for slot in slots:
            assert engine.submit(slot)
        watcher.wait(len(slots), _WAIT_SECONDS)
    engine.stop(_WAIT_SECONDS)
    for name, outcome in watcher.outcomes.items():
        site.assert_close(rows_of(encoder, outcome), media.eager_rows(encoder, name), name)
    assert not watcher.lost
    if isinstance(runner, GraphRunner):
        assert runner.figures(encoder.card.name).hits > 0


def check_little_memory(site: Site, folder: Path) -> None:
    """A batch without room is halved until it fits; an item without room fails alone; the engine lives on."""
    encoder, media, watcher = site.encoder("whisper", folder), Media(folder / "blobs"), GatedWatcher()
    too_many = site.too_many_windows
    with site.little_memory(encoder) as runner:
        engine = engine_of(site, encoder, watcher, runner, items=too_many)
        slots = [media.slot(encoder, raw_audio(480_000)) for _ in range(1 + too_many)]
        for slot in slots:
            engine.submit(slot)
        watcher.gate.set()
        watcher.wait(len(slots), _WAIT_SECONDS)
        sizes = [one.batch_size for one in watcher.outcomes.values() if isinstance(one, Encoded)]
        assert len(sizes) == len(slots)
        assert max(sizes) < too_many
        huge = media.slot(encoder, raw_audio(480_000 * 4 * too_many))
        engine.submit(huge)
        watcher.wait(len(slots) + 1, _WAIT_SECONDS)
        outcome = watcher.outcomes[huge.id]
        assert isinstance(outcome, Failed), outcome
        assert isinstance(outcome.error, EncodeFailed)
        assert "out of memory" in str(outcome.error)
        last = media.slot(encoder, raw_audio(480_000))
        engine.submit(last)
        watcher.wait(len(slots) + 2, _WAIT_SECONDS)
        engine.stop(_WAIT_SECONDS)
    for slot in (slots[0], slots[-1], last):
        rows = rows_of(encoder, watcher.outcomes[slot.id])
        site.assert_close(rows, media.eager_rows(encoder, slot.id), slot.id)
    assert not watcher.lost
