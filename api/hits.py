"""Requests that the cache answers wholly, on the event loop: no thread, three round trips, no message.

A thread for each request would cost more than the answer: each of its waits for the store gives the
interpreter's lock away, and gets it back only after whatever else runs. What is not at hand here is left to
``api.submission``, which starts from the beginning; so this path answers, or has changed nothing.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from api.admission import admit, named_model
from api.hit_answer import HitAnswers
from api.hit_lookup import ItemHit, NeedsMemory, item_hits
from api.schemas import EncodeRequest
from api.services import Services
from api.submission import record_of
from epd.contracts.job import JobRecord
from epd.contracts.media import Item
from epd.identity import source_key
from epd.inline import is_data_uri
from epd.lookup import by_track, digest_of_memo, encoders_of
from epd.store.hits import Hits
from epd.store.values import SourceMemo
from epd.telemetry.tracing import span

#: More items are looked up in a thread: they would hold the loop up.
MAX_ITEMS = 64


@dataclass(frozen=True, slots=True)
class HitAnswer:
    """A job that was final at once: its id, its JSON, and its items with their entries."""

    job_id: str
    json: bytes
    items: Sequence[ItemHit]


class HitPath:
    """Answers requests from the cache; for one event loop."""

    def __init__(self, services: Services, hits: Hits) -> None:
        self._services = services
        self._hits = hits
        self._needs = NeedsMemory()
        self._answers = HitAnswers()

    async def answer(self, request: EncodeRequest, trace: Mapping[str, str]) -> HitAnswer | None:
        """The job of a request whose items all are cached, recorded; None where one may not be.

        Raises:
            CallerFault: the request is at fault.
            EncoderNotReady, StoreUnavailable: come again.
        """
        if len(request.items) > MAX_ITEMS:
            return None
        settings = self._services.settings
        name, model = named_model(request, config=self._services.config, settings=settings)
        sources = _source_keys(request, settings.url_ttl)
        if sources is None:
            return None
        encoders = encoders_of(model)
        facts = await self._hits.facts(list(encoders.values()), list(sources.values()))
        cards = by_track(encoders, facts.cards)
        admitted = admit(request, name=name, model=model, cards=cards, settings=settings)
        memos = dict(zip(sources, facts.memos, strict=True))
        known = _with_digests(admitted.items, memos, settings.url_ttl)
        if known is None:
            return None
        needs = self._needs.of(known, name=name, model=model, cards=cards)
        keys = list(dict.fromkeys(key for need in needs for key in need.key_list()))
        entries = dict(zip(keys, await self._hits.lookup(keys), strict=True))
        found = item_hits(admitted.items, needs, entries)
        return None if found is None else await self._recorded(record_of(admitted), found, trace)

    async def _recorded(
        self, record: JobRecord, found: Sequence[ItemHit], trace: Mapping[str, str]
    ) -> HitAnswer:
        """The answer; the job is written first, since it may be asked for by its id."""
        done = {part: entry for hit in found for part, entry in hit.parts().items()}
        with span("epd.submit", trace, items=len(found), cached=len(found)):
            await self._hits.create(record, done)
        return HitAnswer(record.job_id, self._answers.json(record, found), found)


def _source_keys(request: EncodeRequest, url_ttl: float) -> dict[str, str] | None:
    """Source keys by URL; None where no memo counts, or a URL is none, which the ordinary path will say."""
    urls = [item.url for item in request.items if item.url is not None and not is_data_uri(item.url)]
    if urls and url_ttl <= 0:
        return None
    try:
        return {url: source_key(url) for url in urls}
    except ValueError:
        return None


def _with_digests(
    items: Sequence[Item], memos: Mapping[str, SourceMemo | None], url_ttl: float
) -> list[tuple[Item, str]] | None:
    """Items with their digests; None where one is not known without a download."""
    known: list[tuple[Item, str]] = []
    now = time.time()
    for item in items:
        digest = item.source.media_id
        if item.source.url is not None:
            digest = digest_of_memo(memos[item.source.url], url_ttl=url_ttl, now=now)
        if digest is None:
            return None
        known.append((item, digest))
    return known
