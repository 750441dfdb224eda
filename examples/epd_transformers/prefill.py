"""Prefill: embeddings from epd, the prompt through the language model up to the first token, the handoff.

A request: ``{"request_id": "r1", "model": "qwen", "limit": 16, "parts": ["What is ", {"type": "image",
"path": "cat.jpg"}, "?"]}``. Images and videos are part of the prompt. Audio, also that of a video, is a
separate sequence for the language model that belongs to its encoder.
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
from examples.epd_transformers.sequence import LanguageModel, Part, Prefilled, save_caches


class Prefill:
    """Runs prompts up to their first token."""

    def __init__(
        self, epd: Client, languages: Mapping[str, LanguageModel], kv: Path, workers: int = 1
    ) -> None:
        self._epd = epd
        self._languages = languages
        self._kv = kv
        self._device = threading.Semaphore(workers)

    def answer(self, request: Line) -> Line:
        """The first token of each sequence. When it returns, Decode can read all that it needs."""
        media = [part for part in request["parts"] if not isinstance(part, str)]
        items = self._epd.encode(media, model=request["model"]).items
        prompts = prompts_of(request["parts"], items)
        rows = self._rows([medium for prompt in prompts for medium in media_of(prompt)])
        prefilled = [self._prefill(prompt, rows) for prompt in prompts]
        save_caches(self._kv / f"{request['request_id']}.safetensors", [one.cache for one in prefilled])
        self._epd.put_handoff(request["request_id"], handoff_of(prompts, prefilled, request["limit"]))
        cached = [one.cached for item in items for one in (item, *item.tracks)]
        return {"tokens": [one.token for one in prefilled], "cached": cached}

    def _rows(self, media: Sequence[Metadata]) -> dict[str, Tensor]:
        """Embeddings [tokens, hidden] by key, all in one request."""
        keys = list({medium.embedding_key for medium in media})
        return dict(zip(keys, self._epd.slices([Slice(key=key) for key in keys], form="torch"), strict=True))

    def _prefill(self, prompt: Sequence[Part], rows: Mapping[str, Tensor]) -> Prefilled:
        media = media_of(prompt)
        with self._device:
            return self._languages[media[0].encoder].prefill(
                prompt, [rows[one.embedding_key] for one in media]
            )


def prompts_of(parts: Sequence[str | Line], items: Sequence[ItemAnswer]) -> list[list[Part]]:
    """The prompt of text, images and videos, if any, and then one prompt for each audio."""
    main: list[Part] = []
    audios: list[Metadata] = []
    answers = iter(items)
    for part in parts:
        if isinstance(part, str):
            main.append(part)
            continue
        item = next(answers)
        for known in map(metadata_of, (item, *item.tracks)):
            (audios if known.modality == Modality.AUDIO else main).append(known)
    prompts: list[list[Part]] = [main] if media_of(main) else []
    prompts += [[audio] for audio in audios]
    return prompts


def metadata_of(part: PartAnswer) -> Metadata:
    """The metadata of an item or track; raises ``EncodeFailed`` when it has none."""
    if part.metadata is None:
        raise EncodeFailed(f"{part.type}: {part.error.message if part.error else part.state}")
    return part.metadata


def media_of(prompt: Sequence[Part]) -> list[Metadata]:
    """The media of a prompt."""
    return [part for part in prompt if isinstance(part, Metadata)]


def handoff_of(
    prompts: Sequence[Sequence[Part]], prefilled: Sequence[Prefilled], limit: int
) -> HandoffRequest:
    """The handoff. Audio has no placeholder in the prompt, so its position is the prompt's end."""
    main = prefilled[0]
    placed = [
        _placement(medium, runs, main.prompt_tokens)
        for prompt, one in zip(prompts, prefilled, strict=True)
        for medium, runs in zip(media_of(prompt), one.runs, strict=True)
    ]
    sequences = [
        {"language": media_of(prompt)[0].encoder, "token": one.token}
        for prompt, one in zip(prompts, prefilled, strict=True)
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
    """Serve requests until standard input ends."""
    options = read_options("prefill")
    with Client(options.epd) as epd:
        prefill = Prefill(epd, load_languages(options.checkpoints), options.kv, options.workers)
        serve(prefill.answer)


if __name__ == "__main__":
    main()
