"""``python -m bench.engine.resizing``: both kinds of resize on this CPU, as one JSON object.

``pillow_ms`` and ``tensor_ms`` are the best and the median of all tries for one image, resized and cropped
as for DINOv2. Tries of both alternate.
"""

from __future__ import annotations

import json
import statistics
import sys
import time

import torch
from torch import Tensor

from gpu_worker.preprocess.fit import CropRule
from gpu_worker.preprocess.resize import AxisPass, resize, tensor_pass
from gpu_worker.service.torch_threads import set_torch_threads

_TRIES = 15
_RULE = CropRule(shortest_edge=256, crop=(224, 224))
_IMAGES = {"640x480": (480, 640), "1080p": (1080, 1920)}
_WAYS: dict[str, AxisPass | None] = {"pillow_ms": None, "tensor_ms": tensor_pass}


def main() -> None:
    """Measure and print."""
    figures: dict[str, object] = {"threads": set_torch_threads(0)}
    for name, size in _IMAGES.items():
        figures[name] = measure(torch.randint(0, 256, (1, *size, 3), dtype=torch.uint8))
    sys.stdout.write(json.dumps(figures) + "\n")


def measure(image: Tensor) -> dict[str, list[float]]:
    """Milliseconds of each kind: [best, median]."""
    tries: dict[str, list[float]] = {name: [] for name in _WAYS}
    size, window = _RULE.placed(image.shape[1], image.shape[2])
    for number in range(1 + _TRIES):
        for name, way in _WAYS.items():
            started = time.perf_counter()
            resize(image, size, window=window, way=way)
            if number:  # the first makes tables and threads
                tries[name].append((time.perf_counter() - started) * 1e3)
    return {name: [round(min(all_), 2), round(statistics.median(all_), 2)] for name, all_ in tries.items()}


if __name__ == "__main__":
    main()
