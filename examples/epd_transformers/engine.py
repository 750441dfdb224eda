"""The base of Prefill and Decode: a process that reads one request per line and answers with one line."""

from __future__ import annotations

import argparse
import json
import sys
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TextIO

import torch
import transformers

from epd.contracts.errors import EpdError
from examples.epd_transformers.qwen import QwenLanguage
from examples.epd_transformers.sequence import LanguageModel
from examples.epd_transformers.whisper import WhisperLanguage

#: A request or an answer: a JSON object with a ``request_id``.
Line = dict[str, Any]

#: The most requests at once, waiting for epd or for their turn on the device.
MAX_REQUESTS = 32


def read_options(program: str) -> argparse.Namespace:
    """Parse ``--epd URL --kv FOLDER NAME=CHECKPOINT ...``; NAME is an encoder in epd.toml."""
    parser = argparse.ArgumentParser(prog=f"python -m examples.epd_transformers.{program}")
    parser.add_argument("--epd", default="http://127.0.0.1:8000", help="epd's API")
    parser.add_argument("--kv", type=Path, required=True, help="folder that Prefill and Decode share")
    parser.add_argument("--workers", type=int, default=1, help="prompts that run at the same time")
    parser.add_argument("--threads", type=int, default=1, help="threads of torch for each prompt")
    parser.add_argument("checkpoints", nargs="+", metavar="NAME=CHECKPOINT")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    return options


def load_languages(checkpoints: list[str]) -> dict[str, LanguageModel]:
    """The language models by the names of the encoders whose embeddings they read."""
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    folders = dict(one.split("=", 1) for one in checkpoints)
    return {name: _load(Path(folder)) for name, folder in folders.items()}


def _load(folder: Path) -> LanguageModel:
    family = json.loads((folder / "config.json").read_text("utf-8"))["model_type"]
    return WhisperLanguage(folder) if family == "whisper" else QwenLanguage(folder)


def serve(answer: Callable[[Line], Line], lines: TextIO = sys.stdin) -> None:
    """Answer requests, several at a time, until the input ends. A failure affects only its own request."""
    writing = threading.Lock()

    def work(line: str) -> None:
        request = json.loads(line)
        try:
            result: Mapping[str, Any] = answer(request)
        except (EpdError, OSError, ValueError, KeyError) as error:
            result = {"error": f"{type(error).__name__}: {error}"}
        with writing:
            print(json.dumps({"request_id": request["request_id"], **result}), flush=True)

    print(json.dumps({"request_id": None}), flush=True)  # ready
    with ThreadPoolExecutor(MAX_REQUESTS) as pool:
        for line in lines:
            pool.submit(work, line)
