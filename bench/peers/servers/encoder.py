"""What a user of litserve or mosec writes: downloads, Pillow, the published processor and model.

``prepare`` turns a source into the processor's pixels, ``encode`` turns pixels into rows. With a simulated
device, preparing ends with the decoded image, and encoding is sleep.
"""

from __future__ import annotations

import argparse
import fcntl
import io
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import requests
from numpy.typing import NDArray
from PIL import Image

#: float32: [3, height, width] for the model, or nothing for a simulated device.
Pixels = NDArray[np.float32]
#: A URL, or the file.
Source = str | bytes

#: Values of a simulated device's row.
_HIDDEN = 8
#: Most images of a forward.
_MOST = 32


@dataclass(frozen=True, slots=True)
class Options:
    """The command line of a server. ``lock`` is a file, and ``checkpoint`` a folder unless simulated."""

    port: int
    threads: int
    layout: tuple[int, ...]
    checkpoint: Path
    lock: Path
    device_ms: tuple[float, float] | None


def read_options(arguments: Sequence[str] | None = None) -> Options:
    """Options from the command line of this process; others are ignored."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--layout", type=int, nargs="*", default=())
    parser.add_argument("--checkpoint", type=Path, default=Path())
    parser.add_argument("--lock", type=Path, default=Path())
    parser.add_argument("--device-ms", type=float, nargs=2)
    known, _ = parser.parse_known_args(arguments)
    device = tuple(known.device_ms) if known.device_ms else None
    return Options(known.port, known.threads, tuple(known.layout), known.checkpoint, known.lock, device)


class Downloads:
    """Prepares sources in threads, each with a kept connection."""

    def __init__(self, options: Options, threads: int) -> None:
        self._pool = ThreadPoolExecutor(threads)
        self._local = threading.local()
        self._processor = None if options.device_ms else _processor(options.checkpoint)

    def prepare(self, sources: Sequence[Source]) -> list[Pixels]:
        """The pixels of each source, in their order."""
        return list(self._pool.map(self._prepare, sources))

    def _prepare(self, source: Source) -> Pixels:
        data = self._download(source) if isinstance(source, str) else source
        with Image.open(io.BytesIO(data)) as opened:
            image = opened.convert("RGB")
        if self._processor is None:
            return np.zeros(0, np.float32)
        pixels: Pixels = self._processor(image, return_tensors="np").pixel_values[0]
        return pixels

    def _download(self, url: str) -> bytes:
        session: requests.Session | None = getattr(self._local, "session", None)
        if session is None:
            session = self._local.session = requests.Session()
        answer = session.get(url, timeout=30)
        answer.raise_for_status()
        return answer.content


def _processor(checkpoint: Path) -> Any:
    from transformers import AutoImageProcessor

    return AutoImageProcessor.from_pretrained(checkpoint)


class PublishedEncoder:
    """transformers' model in float32."""

    def __init__(self, checkpoint: Path, threads: int) -> None:
        import torch
        from transformers import AutoModel

        torch.set_num_threads(threads)
        self._torch = torch
        self._model = AutoModel.from_pretrained(checkpoint, dtype=torch.float32).eval()

    def encode(self, pixels: Sequence[Pixels]) -> list[bytes]:
        """The rows of each image, as float32."""
        found: list[bytes] = []
        for start in range(0, len(pixels), _MOST):
            batch = self._torch.from_numpy(np.stack(pixels[start : start + _MOST]))
            with self._torch.inference_mode():
                rows = self._model(batch).last_hidden_state
            found += [one.numpy().tobytes() for one in rows]
        return found


class SimulatedEncoder:
    """Sleeps for its time, which releases the GIL. The workers of a server share one device, in turns."""

    def __init__(self, batch_ms: float, item_ms: float, lock: Path) -> None:
        self._batch, self._item = batch_ms / 1000, item_ms / 1000
        self._device = lock.open("wb")

    def encode(self, pixels: Sequence[Any]) -> list[bytes]:
        """A row of zeros for each image."""
        for start in range(0, len(pixels), _MOST):
            items = len(pixels[start : start + _MOST])
            fcntl.flock(self._device, fcntl.LOCK_EX)
            try:
                time.sleep(self._batch + self._item * items)
            finally:
                fcntl.flock(self._device, fcntl.LOCK_UN)
        return [np.zeros(_HIDDEN, np.float32).tobytes() for _ in pixels]


def make_encoder(options: Options, threads: int) -> PublishedEncoder | SimulatedEncoder:
    """The encoder that the options name."""
    if options.device_ms:
        return SimulatedEncoder(*options.device_ms, options.lock)
    return PublishedEncoder(options.checkpoint, threads)
