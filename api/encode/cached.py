"""The answer to a request whose items are all cached, put together from the kept texts of their embeddings.

It is the JSON of ``api.jobs.answers.job_answer``; a test compares the two.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from functools import lru_cache

import orjson

from api.encode.plan import Plan
from api.jobs.answers import part_answer
from epd.contracts.job import PartId, State
from epd.contracts.media import Item, Modality
from epd.contracts.responses import Usage
from epd.lookup import Found
from epd.store.cache.async_cache import ENTRIES, CachedPart, LookedUp
from epd.telemetry.metrics import ApiMetrics


def cached_parts(plan: Plan, found: Mapping[int, Found], looked: LookedUp) -> dict[PartId, CachedPart] | None:
    """All parts of the job; None where an item is not cached, or failed by what its entry says."""
    if len(found) < len(plan.items):
        return None
    parts: dict[PartId, CachedPart] = {}
    for each in found.values():
        if not each.complete:
            return None
        for part_id, record in each.finished.items():
            if record.ref is None:
                return None
            parts[part_id] = looked.parts[record.ref.key]
    return parts


def cached_json(plan: Plan, parts: Mapping[PartId, CachedPart]) -> bytes:
    """The answer of a job that consists of these parts."""
    record = plan.record
    items = [_item_json(item, own_id, parts) for item, own_id in zip(record.items, record.ids, strict=True)]
    job_id, model = _quoted(record.job_id), _quoted(record.model)
    usage = _usage(parts).model_dump_json()
    return (
        f'{{"job_id":{job_id},"model":{model},"state":"{State.DONE}",'
        f'"items":[{",".join(items)}],"usage":{usage}}}'
    ).encode()


def count_cached(metrics: ApiMetrics, plan: Plan) -> None:
    """Count a job whose items were all cached, as ``count_answer`` does for others."""
    metrics.jobs.labels(State.DONE.value).inc()
    for kind, number in Counter(item.modality for item in plan.items).items():
        metrics.items.labels(kind.value, "cached").inc(number)


def _item_json(item: Item, own_id: str | None, parts: Mapping[PartId, CachedPart]) -> str:
    """An item has the fields of its main part and three more."""
    main = _part_json(parts[PartId(item.index, item.modality)])
    audio = parts.get(PartId(item.index, Modality.AUDIO)) if item.modality is Modality.VIDEO else None
    tracks = "" if audio is None else _part_json(audio)
    return f'{main[:-1]},"index":{item.index},"id":{_quoted(own_id)},"tracks":[{tracks}]}}'


@lru_cache(maxsize=ENTRIES)
def _part_json(part: CachedPart) -> str:
    assert part.record.metadata is not None
    return part_answer(part.record.metadata.modality, part.record).model_dump_json()


def _quoted(text: str | None) -> str:
    return orjson.dumps(text).decode()


def _usage(parts: Mapping[PartId, CachedPart]) -> Usage:
    tokens = dict.fromkeys(Modality, 0)
    for part_id, part in parts.items():
        tokens[part_id.track] += 0 if part.record.ref is None else part.record.ref.tokens
    return Usage(
        image_tokens=tokens[Modality.IMAGE],
        video_tokens=tokens[Modality.VIDEO],
        audio_tokens=tokens[Modality.AUDIO],
        total_tokens=sum(tokens.values()),
    )
