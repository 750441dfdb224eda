"""Decode: goes on from Prefill's KV cache with the handoff alone. It reaches epd's API and nothing else.

A request is ``{"request_id": "r1"}``; it may come before Prefill's is done, or even begun.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from epd.client import Client
from examples.epd_transformers.engine import Line, load_languages, read_options, serve
from examples.epd_transformers.offline import allow_only
from examples.epd_transformers.sequence import Language, take_caches

#: Seconds to wait for Prefill.
PATIENCE = 60.0


class Decode:
    """Runs sequences from their first tokens to their ends."""

    def __init__(self, epd: Client, languages: Mapping[str, Language], kv: Path, workers: int = 1) -> None:
        self._epd = epd
        self._languages = languages
        self._kv = kv
        self._device = threading.Semaphore(workers)

    def answer(self, request: Line) -> Line:
        """All tokens of each sequence, and what they say."""
        handoff = self._epd.handoff(request["request_id"], wait=PATIENCE)
        extra: Any = handoff.extra
        delta = handoff.mrope_position_delta or 0
        caches = take_caches(self._kv / f"{request['request_id']}.safetensors")
        tokens, texts = [], []
        for sequence, cache in zip(extra["sequences"], caches, strict=True):
            language = self._languages[sequence["language"]]
            with self._device:
                said = language.go_on(sequence["token"], cache, delta=delta, limit=extra["limit"])
            tokens.append(said)
            texts.append(language.text(said))
        return {"tokens": tokens, "texts": texts, "media": [item.key for item in handoff.items]}


def main() -> None:
    """Serve requests until the input ends."""
    options = read_options("decode")
    languages = load_languages(options.checkpoints)
    allow_only(options.epd)
    with Client(options.epd) as epd:
        serve(Decode(epd, languages, options.kv, options.workers).answer)


if __name__ == "__main__":
    main()
