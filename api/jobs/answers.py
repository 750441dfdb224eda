"""Answers from records: what a caller sees of a job."""

from __future__ import annotations

from epd.contracts.embedding import EmbeddingRef
from epd.contracts.job import JobView, PartId, PartRecord, State
from epd.contracts.media import Modality
from epd.contracts.responses import EmbeddingAnswer, ItemAnswer, JobAnswer, PartAnswer, Usage
from epd.telemetry.metrics import ApiMetrics


def job_answer(view: JobView) -> JobAnswer:
    """A job with its items in the order of the request."""
    return JobAnswer(
        job_id=view.record.job_id,
        model=view.record.model,
        state=view.state,
        items=tuple(item_answer(view, index) for index in range(len(view.record.items))),
        usage=_usage(view),
    )


def item_answer(view: JobView, index: int) -> ItemAnswer:
    """One item. ``cached`` is true when nothing of it had to be encoded for this job."""
    (_, main), *tracks = view.parts_of(index)
    item = view.record.items[index]
    return ItemAnswer(
        **_part_fields(item.modality, main) | {"state": view.item_state(index)},
        index=index,
        id=view.record.ids[index],
        tracks=tuple(part_answer(part.track, record) for part, record in tracks),
    ).model_copy(update={"cached": all(record.cached for _, record in view.parts_of(index))})


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
