"""``python -m bench.ttft.colocated CHECKPOINT WORKERS THREADS``: all work to the first token in one process.

It uses the published processor and model, as transformers users do, with ``WORKERS`` requests at a time in
the model and ``THREADS`` torch threads for each. Images are downloaded in parallel.
"""

from __future__ import annotations

import io
import sys
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import requests
import torch
import transformers
from PIL import Image
from transformers import AutoModelForImageTextToText, AutoTokenizer, Qwen2VLImageProcessorPil

from examples.epd_transformers.engine import Line, serve

_DOWNLOADS = 32
_WAIT_SECONDS = 60.0
_IMAGE = "<|vision_start|>{}<|vision_end|>"


class Colocated:
    """A Qwen2.5-VL model with its vision tower and its downloads."""

    def __init__(self, folder: Path, workers: int) -> None:
        self._model: Any = AutoModelForImageTextToText.from_pretrained(folder, dtype=torch.float32).eval()
        self._tokenizer: Any = AutoTokenizer.from_pretrained(folder)
        self._processor: Any = Qwen2VLImageProcessorPil.from_pretrained(folder)
        self._downloads = ThreadPoolExecutor(_DOWNLOADS)
        self._workers = ThreadPoolExecutor(workers)
        self._local = threading.local()

    def answer(self, request: Line) -> Line:
        """The first token of a prompt of text and images."""
        parts = request["parts"]
        urls = [part["url"] for part in parts if not isinstance(part, str)]
        files = list(self._downloads.map(self._download, urls))
        return {"tokens": [self._workers.submit(self._first_token, parts, files).result()]}

    def _download(self, url: str) -> bytes:
        if not hasattr(self._local, "session"):
            self._local.session = requests.Session()
        answer = self._local.session.get(url, timeout=_WAIT_SECONDS)
        answer.raise_for_status()
        return bytes(answer.content)

    @torch.inference_mode()
    def _first_token(self, parts: Sequence[str | Line], files: Sequence[bytes]) -> int:
        images = [Image.open(io.BytesIO(data)).convert("RGB") for data in files]
        pixels = self._processor(images, return_tensors="pt")
        ids = self._ids(parts, pixels.image_grid_thw.prod(1) // self._processor.merge_size**2)
        types = (ids == self._model.config.image_token_id).int()
        inputs = {"input_ids": ids, "mm_token_type_ids": types, **pixels}
        out = self._model(**inputs, use_cache=True, logits_to_keep=1)
        return int(out.logits[0, -1].argmax())

    def _ids(self, parts: Sequence[str | Line], counts: torch.Tensor) -> torch.Tensor:
        rows = iter(counts.tolist())
        text = [
            part if isinstance(part, str) else _IMAGE.format("<|image_pad|>" * next(rows)) for part in parts
        ]
        ids: torch.Tensor = self._tokenizer(
            "".join(text), add_special_tokens=False, return_tensors="pt"
        ).input_ids
        return ids


def main() -> None:
    """Serve requests until the input ends."""
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    torch.set_num_threads(int(sys.argv[3]))
    serve(Colocated(Path(sys.argv[1]), int(sys.argv[2])).answer)


if __name__ == "__main__":
    main()
