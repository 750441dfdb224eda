"""Prefill: embeddings from epd, the prompt through the language model, the first token; then the handoff.

A request: ``{"request_id": "r1", "model": "qwen", "limit": 16, "parts": ["What is ", {"type": "image",
"path": "cat.jpg"}, "?"]}``. Images and videos stand in the prompt. A sound, a video's own too, is heard
beside it: by the language model of its encoder, as a sequence of its own.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from pathlib import Path

from torch import Tensor

from epd.client import Client
from epd.contracts.embedding import Metadata
from epd.contracts.errors import EncodeFailed
from epd.contracts.handoff import HandoffRequest, Placement, Slice, Span
from epd.contracts.media import Modality
from epd.contracts.responses import ItemAnswer, PartAnswer
from examples.epd_transformers.engine import Line, load_languages, read_options, serve
from examples.epd_transformers.sequence import Begun, Language, Part, save_caches


class Prefill:
    """Runs prompts up to their first tokens."""

    def __init__(self, epd: Client, languages: Mapping[str, Language], kv: Path, workers: int = 1) -> None:
        self._epd = epd
        self._languages = languages
        self._kv = kv
        self._device = threading.Semaphore(workers)

    def answer(self, request: Line) -> Line:
        """The first token of each sequence; by then Decode can have all that it needs."""
        media = [part for part in request["parts"] if not isinstance(part, str)]
        items = self._epd.encode(media, model=request["model"]).items
        prompts = prompts_of(request["parts"], items)
        rows = self._rows([medium for prompt in prompts for medium in media_of(prompt)])
        begun = [self._begin(prompt, rows) for prompt in prompts]
        save_caches(self._kv / f"{request['request_id']}.safetensors", [one.cache for one in begun])
        self._epd.put_handoff(request["request_id"], handoff_of(prompts, begun, request["limit"]))
        cached = [one.cached for item in items for one in (item, *item.tracks)]
        return {"tokens": [one.token for one in begun], "cached": cached}

    def _rows(self, media: Sequence[Metadata]) -> dict[str, Tensor]:
        """[tokens, hidden] by key, all in one request."""
        keys = list({medium.embedding_key for medium in media})
        return dict(zip(keys, self._epd.slices([Slice(key=key) for key in keys], form="torch"), strict=True))

    def _begin(self, prompt: Sequence[Part], rows: Mapping[str, Tensor]) -> Begun:
        media = media_of(prompt)
        with self._device:
            return self._languages[media[0].encoder].begin(prompt, [rows[one.embedding_key] for one in media])


def prompts_of(parts: Sequence[str | Line], items: Sequence[ItemAnswer]) -> list[list[Part]]:
    """The prompt of text, images and videos, when there is one; then one for each sound."""
    seen: list[Part] = []
    heard: list[Metadata] = []
    answers = iter(items)
    for part in parts:
        if isinstance(part, str):
            seen.append(part)
            continue
        item = next(answers)
        for known in map(metadata_of, (item, *item.tracks)):
            (heard if known.modality == Modality.AUDIO else seen).append(known)
    prompts = [seen] if media_of(seen) else []
    for audio in heard:
        prompts.append([audio])
    return prompts


def metadata_of(part: PartAnswer) -> Metadata:
    """Raises ``EncodeFailed`` for an item that has none."""
    if part.metadata is None:
        raise EncodeFailed(f"{part.type}: {part.error.message if part.error else part.state}")
    return part.metadata


def media_of(prompt: Sequence[Part]) -> list[Metadata]:
    """A prompt without its text."""
    return [part for part in prompt if isinstance(part, Metadata)]


def handoff_of(prompts: Sequence[Sequence[Part]], begun: Sequence[Begun], limit: int) -> HandoffRequest:
    """Where each embedding stands; what is beside the prompt stands at its end, without a placeholder."""
    main = begun[0]
    placed = [
        _placement(medium, runs, main.prompt_tokens)
        for prompt, one in zip(prompts, begun, strict=True)
        for medium, runs in zip(media_of(prompt), one.runs, strict=True)
    ]
    sequences = [
        {"language": media_of(prompt)[0].encoder, "token": one.token}
        for prompt, one in zip(prompts, begun, strict=True)
    ]
    return HandoffRequest(
        items=tuple(placed),
        mrope_position_delta=main.delta,
        prompt_tokens=main.prompt_tokens,
        extra={"sequences": sequences, "limit": limit},
    )


def _placement(medium: Metadata, runs: Sequence[Span], end: int) -> Placement:
    return Placement(
        key=medium.embedding_key,
        offset=runs[0][0] if runs else end,
        length=sum(length for _, length in runs),
        spans=tuple(runs) if len(runs) > 1 else None,
    )


def main() -> None:
    """Serve requests until the input ends."""
    options = read_options("prefill")
    with Client(options.epd) as epd:
        prefill = Prefill(epd, load_languages(options.checkpoints), options.kv, options.workers)
        serve(prefill.answer)


if __name__ == "__main__":
    main()
