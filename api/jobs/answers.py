"""What a caller sees of a job.

``job_answer`` makes it from the job's records. ``CachedAnswers`` makes the same answer out of texts that are
kept, for a job whose items are all cached.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import orjson

from api.encode.plan import CachedItem
from epd.contracts.embedding import EmbeddingRef
from epd.contracts.job import JobRecord, JobView, PartId, PartRecord, State, combined_state, state_of_parts
from epd.contracts.media import Modality
from epd.contracts.responses import EmbeddingAnswer, ItemAnswer, JobAnswer, PartAnswer, Usage
from epd.store.cache.async_cache import ENTRIES, CachedPart
from epd.telemetry.metrics import ApiMetrics

_TRACKS = tuple(Modality)  # going through an enum's members costs more than what is done with them


def job_answer(view: JobView) -> JobAnswer:
    """A job with its items in the order of the request."""
    items = tuple(item_answer(view, index) for index in range(len(view.record.items)))
    return JobAnswer(
        job_id=view.record.job_id,
        model=view.record.model,
        state=combined_state(item.state for item in items),
        items=items,
        usage=_usage(view),
    )


def item_answer(view: JobView, index: int) -> ItemAnswer:
    """One item. ``cached`` is true when nothing of it had to be encoded for this job."""
    (main_id, main), *tracks = view.parts_of(index)
    records = [main, *(record for _, record in tracks)]
    fields = _part_fields(main_id.track, main)
    fields["state"] = state_of_parts(records)
    fields["cached"] = all(record.cached for record in records)
    return ItemAnswer(
        **fields,
        index=index,
        id=view.record.ids[index],
        tracks=tuple(part_answer(part.track, record) for part, record in tracks),
    )


def part_answer(track: Modality, record: PartRecord) -> PartAnswer:
    """One track of an item."""
    return PartAnswer(**_part_fields(track, record))


def count_answer(metrics: ApiMetrics, answer: JobAnswer) -> None:
    """Count a job that was answered when it was final, and its items."""
    metrics.jobs.labels(answer.state.value).inc()
    for item in answer.items:
        cached = item.cached and item.state is State.DONE
        metrics.items.labels(item.type.value, "cached" if cached else item.state.value).inc()


def _part_fields(track: Modality, record: PartRecord) -> dict[str, object]:
    return {
        "type": track,
        "state": record.state,
        "cached": record.cached,
        "embedding": None if record.ref is None else _embedding(record.ref),
        "metadata": record.metadata,
        "error": record.error,
        "timings": record.timings,
        "segments": record.segments,
    }


def _embedding(ref: EmbeddingRef) -> EmbeddingAnswer:
    return EmbeddingAnswer(
        key=ref.key,
        shape=ref.shape,
        dtype=ref.dtype,
        nbytes=ref.nbytes,
        url=f"/v1/embeddings/{ref.key}",
    )


def _usage(view: JobView) -> Usage:
    tokens = dict.fromkeys(Modality, 0)
    for text, record in view.parts.items():
        if record.ref is not None:
            tokens[PartId.parse(text).track] += record.ref.tokens
    return Usage(
        image_tokens=tokens[Modality.IMAGE],
        video_tokens=tokens[Modality.VIDEO],
        audio_tokens=tokens[Modality.AUDIO],
        total_tokens=sum(tokens.values()),
    )


@dataclass(frozen=True, slots=True)
class _PartText:
    """The JSON of a part's ``PartAnswer`` without its closing brace, and the numbers that count."""

    head: str
    tokens: int
    source_bytes: int


class CachedAnswers:
    """The answers to requests whose items are all cached, without a model object for each request.

    ``json`` is the text of ``job_answer`` for the same job; a test compares the two. A part's text is made
    once and kept for as long as the store gives the same ``CachedPart``.
    """

    def __init__(self, metrics: ApiMetrics) -> None:
        """Nothing is kept yet."""
        self._metrics = metrics
        self._text = lru_cache(ENTRIES)(_part_text)

    def json(self, record: JobRecord, items: Sequence[CachedItem]) -> bytes:
        """The answer of a done job that has these items."""
        texts, tokens = [], dict.fromkeys(_TRACKS, 0)
        for (item, main, audio), own_id in zip(items, record.ids, strict=True):
            text, tracks = self._text(main), ""
            tokens[item.modality] += text.tokens
            if audio is not None:
                track = self._text(audio)
                tokens[Modality.AUDIO] += track.tokens
                tracks = track.head + "}"
            texts.append(f'{text.head},"index":{item.index},"id":{_quoted(own_id)},"tracks":[{tracks}]}}')
        usage = ",".join(f'"{track}_tokens":{tokens[track]}' for track in _TRACKS)
        return (
            f'{{"job_id":"{record.job_id}","model":{_quoted(record.model)},"state":"{State.DONE}",'
            f'"items":[{",".join(texts)}],"usage":{{{usage},"total_tokens":{sum(tokens.values())}}}}}'
        ).encode()

    def count(self, items: Sequence[CachedItem]) -> None:
        """Count a job of these items, as ``count_answer`` does, and the bytes whose download was saved."""
        self._metrics.jobs.labels(State.DONE.value).inc()
        kinds = [item.modality for item, *_ in items]
        for kind in _TRACKS:
            if number := kinds.count(kind):
                self._metrics.items.labels(kind.value, "cached").inc(number)
        self._metrics.saved_bytes.inc(sum(map(self._saved_bytes, items)))

    def _saved_bytes(self, cached: CachedItem) -> int:
        """As ``Found.saved_bytes``."""
        if cached.item.source.url is None:
            return 0
        tracks = 0 if cached.audio is None else self._text(cached.audio).source_bytes
        return max(self._text(cached.main).source_bytes, tracks)


def _part_text(part: CachedPart) -> _PartText:
    ref, metadata = part.record.ref, part.record.metadata
    assert ref is not None
    assert metadata is not None
    text = part_answer(metadata.modality, part.record).model_dump_json()
    return _PartText(text[:-1], ref.tokens, metadata.source_bytes or 0)


def _quoted(text: str | None) -> str:
    return "null" if text is None else orjson.dumps(text).decode()
