"""A real engine with one encoder, fed with blobs. Its rows are written as in the worker."""

from __future__ import annotations

import itertools
import json
import logging
import threading
import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor

from epd.config import EncoderConfig
from epd.contracts.embedding import EmbeddingRef
from epd.contracts.errors import EncodeFailed
from epd.contracts.job import Priority
from epd.contracts.media import BlobRef, ItemOptions, RawImage
from epd.store.files.embedding_folder import EmbeddingFolder
from gpu_worker.encoders.base import Encoder, Inputs
from gpu_worker.encoders.image.dinov2 import Dinov2Shape, Dinov2Tower
from gpu_worker.encoders.registry import load_encoder
from gpu_worker.engine.batcher import Budget
from gpu_worker.engine.device import CpuDevice, Device
from gpu_worker.engine.engine import Engine
from gpu_worker.engine.forward import EagerRunner, Runner
from gpu_worker.engine.slot import Encoded, Settled, Slot

_log = logging.getLogger(__name__)

#: Seconds that a group of items may take; far above what the slowest machine needs.
_WAIT_SECONDS = 120.0
_DEADLINE = 3600.0

#: Rows of a batch: bounded by its items alone.
MAX_COST = 1 << 20


class NotingRunner(EagerRunner):
    """Runs eagerly, and keeps the inputs of each batch, so that they can be run again without the engine."""

    def __init__(self) -> None:
        self.inputs: list[Inputs] = []

    def run(self, encoder: Encoder, inputs: Inputs) -> Tensor:
        """Run eagerly, and keep a reference to the inputs."""
        self.inputs.append(inputs)
        return super().run(encoder, inputs)


class Writer:
    """The engine's observer: publishes each item's rows as an embedding file, and counts."""

    def __init__(self, folder: Path, dtype: str) -> None:
        self._folder = EmbeddingFolder(folder)
        self._dtype = dtype
        self._settled = threading.Semaphore(0)
        self.failures: list[str] = []

    def still_wanted(self, slots: Sequence[Slot]) -> set[str]:
        """All of them."""
        return {slot.id for slot in slots}

    def on_begun(self, slots: Sequence[Slot]) -> None:
        """Does nothing."""

    def on_settled(self, settled: Sequence[Settled]) -> None:
        """Write every item's rows, as ``gpu_worker.service.results`` does."""
        for one in settled:
            try:
                self._write(one)
            except Exception as error:
                _log.exception("item %s was not written", one.slot.id)
                self.failures.append(type(error).__name__)
            self._settled.release()

    def on_device_lost(self, error: BaseException) -> None:
        """Let ``wait`` fail."""
        self.failures.append(str(error))

    def wait(self, count: int) -> None:
        """Wait for so many items.

        Raises:
            EncodeFailed: an item failed, or the items did not end in time.
        """
        end = time.monotonic() + _WAIT_SECONDS
        for _ in range(count):
            if not self._settled.acquire(timeout=max(0.0, end - time.monotonic())):
                self.failures.append("not in time")
                break
        if self.failures:
            raise EncodeFailed(f"the benchmark's own items failed: {self.failures[0]}")

    def _write(self, one: Settled) -> None:
        if not isinstance(one.outcome, Encoded):
            raise EncodeFailed(f"no rows but {one.outcome}")
        rows, shape = one.outcome.rows, (one.outcome.plan.tokens, one.outcome.hidden)
        key = uuid.uuid4().hex * 2
        ref = EmbeddingRef(key=key, shape=shape, dtype=self._dtype, nbytes=rows.nbytes)
        self._folder.publish(ref, rows, {"encoder": one.slot.encoder})
        self._folder.remove(key)  # the benchmark's disk use stays that of one item


class EngineRig:
    """A warm engine, and images for it. Must be closed."""

    def __init__(
        self, encoder: Encoder, folder: Path, *, max_items: int, runner: Runner, device: Device | None = None
    ) -> None:
        """``folder`` holds embeddings; batches have at most ``max_items`` items; the default is the CPU."""
        self.writer = Writer(folder / "embeddings", encoder.card.dtype)
        self._encoder = encoder
        self._numbers = itertools.count()
        self._engine = Engine(
            {encoder.card.name: encoder},
            budget=Budget(max_items=max_items, max_cost=MAX_COST),
            device=device or CpuDevice(),
            observer=self.writer,
            runner=runner,
        )
        self._engine.start()

    def image(self, path: Path, height: int, width: int) -> Slot:
        """A slot for one random image, whose blob is written to ``path``."""
        pixels = torch.randint(0, 256, (height, width, 3), dtype=torch.uint8)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(pixels.numpy().tobytes())
        blob = BlobRef(name=path.name, nbytes=pixels.numel())
        now = time.time()
        return Slot(
            id=str(next(self._numbers)),
            encoder=self._encoder.card.name,
            raw=RawImage(blob=blob, height=height, width=width, original_size=(width, height)),
            path=path,
            options=ItemOptions(),
            priority=Priority.INTERACTIVE,
            deadline=now + _DEADLINE,
            enqueued=now,
        )

    def together(self, slots: Sequence[Slot]) -> float:
        """Seconds from the submission of all to the last written file."""
        started = time.perf_counter()
        for slot in slots:
            self._engine.submit(slot)
        self.writer.wait(len(slots))
        return time.perf_counter() - started

    def one_by_one(self, slots: Sequence[Slot]) -> float:
        """Seconds for all, each submitted when the one before it is written."""
        return sum(self.together([slot]) for slot in slots)

    def close(self) -> None:
        """End the engine's threads."""
        self._engine.stop(_WAIT_SECONDS)


_PATCH = 14
_TRAINED_GRID = 37
_SCALE = 0.02  #: standard deviation of the weights: activations stay finite through all layers


@dataclass(frozen=True, slots=True)
class Size:
    """A DINOv2 of ``width`` and ``layers`` with ``heads`` for square images of ``side`` pixels."""

    name: str
    width: int
    layers: int
    heads: int
    side: int


#: An item takes less time than the launch of its operators, which packing helps with.
SMALL = Size("small", width=64, layers=12, heads=2, side=56)
#: facebook/dinov2-small: 22 M parameters, 257 rows an image.
REALISTIC = Size("dinov2-small", width=384, layers=12, heads=6, side=224)


def load_random(size: Size, folder: Path, dtype: str = "float32") -> Encoder:
    """Write a float32 checkpoint of random weights below ``folder``, and load it onto the CPU.

    ``dtype`` as in ``epd.toml``: ``auto`` is what a worker chooses here.
    """
    path = folder / size.name
    path.mkdir(parents=True)
    (path / "config.json").write_text(json.dumps(_config(size)))
    crop = {"height": size.side, "width": size.side}
    processor = {"size": {"shortest_edge": size.side * 8 // 7}, "crop_size": crop}
    (path / "preprocessor_config.json").write_text(json.dumps(processor))
    generator = torch.Generator().manual_seed(1)
    with torch.device("meta"):
        wanted = Dinov2Tower(_shape(size)).state_dict()
    state = {name: torch.randn(meta.shape, generator=generator) * _SCALE for name, meta in wanted.items()}
    save_file(state, path / "model.safetensors")
    config = {"family": "dinov2", "path": str(path), "dtype": dtype, "device": "cpu"}
    return load_encoder(size.name, EncoderConfig.model_validate(config))


def _shape(size: Size) -> Dinov2Shape:
    return Dinov2Shape(
        width=size.width,
        layers=size.layers,
        heads=size.heads,
        hidden=4 * size.width,
        patch=_PATCH,
        trained_grid=_TRAINED_GRID,
        epsilon=1e-6,
        gated=False,
        qkv_bias=True,
    )


def _config(size: Size) -> dict[str, int]:
    return {
        "hidden_size": size.width,
        "num_hidden_layers": size.layers,
        "num_attention_heads": size.heads,
        "patch_size": _PATCH,
        "image_size": _TRAINED_GRID * _PATCH,
        "mlp_ratio": 4,
    }
