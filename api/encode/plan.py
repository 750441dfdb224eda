"""The plan of a request: its job, the items that were admitted, and the embeddings that they need.

A plan is made once, without the store. The look-up takes its keys from it, and the thread that starts the job
when something is missing takes the same plan.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

from api.encode.admission import admit_item
from api.encode.request import Asked, EncodeItem, EncodeRequest, OnDisconnect
from epd.config import ModelConfig
from epd.contracts.embedding import EncoderCard
from epd.contracts.errors import EpdError
from epd.contracts.job import JobRecord, PartRecord
from epd.contracts.media import Item, ItemOptions, Modality, Source
from epd.identity import source_key
from epd.lookup import Found, Needs, digest_of_memo, found_of, needs_of
from epd.settings import Settings
from epd.store.values import SourceMemo

#: Items of one model whose admission and needs are kept, some 1 KB each beside their text.
LIMIT = 4096
#: Characters of a URL or of inline data beyond which an item is admitted each time. So the texts of one model
#: take 16 MB (four times that where each has a character beyond the basic plane), and their bytes 12 MB.
MAX_TEXT = 4096
#: Characters of a URL beyond which its key is computed each time.
_MAX_URL = 1024

_kept_source_key = lru_cache(maxsize=4096)(source_key)


class ModelPlans:
    """What follows for an item from one model, its cards and the settings. Safe for threads."""

    def __init__(self, model: ModelConfig, cards: Mapping[Modality, EncoderCard], settings: Settings) -> None:
        """Nothing is kept yet."""
        self.model = model
        self.cards = cards
        self.settings = settings
        self._kept_admission = lru_cache(LIMIT)(self._first)
        self._kept_needs = lru_cache(LIMIT)(self._needs)

    def admitted(self, index: int, item: EncodeItem) -> tuple[Item, bytes | None]:
        """The item and the bytes that came with it; raises as ``admit_item`` does."""
        asked = Asked.of(item)
        if len(asked.url or asked.data or "") > MAX_TEXT:
            return self._admit(index, asked)
        try:
            first, data = self._kept_admission(asked)
        except EpdError:
            return self._admit(index, asked)  # raises again, and names the item by its own index
        if index == first.index:
            return first, data
        return Item(index=index, modality=first.modality, source=first.source, options=first.options), data

    def needs(self, item: Item, digest: str) -> Needs:
        """The embeddings of an item whose bytes have this digest."""
        options = item.options if item.options.model_fields_set else None
        return self._kept_needs(digest, item.modality, options)

    def _first(self, asked: Asked) -> tuple[Item, bytes | None]:
        return self._admit(0, asked)

    def _admit(self, index: int, asked: Asked) -> tuple[Item, bytes | None]:
        return admit_item(index, asked, model=self.model, cards=self.cards, settings=self.settings)

    def _needs(self, digest: str, modality: Modality, options: ItemOptions | None) -> Needs:
        source = Source(media_id=digest)
        item = Item(index=0, modality=modality, source=source, options=options or ItemOptions())
        return needs_of(item, digest, model=self.model, cards=self.cards)


@dataclass(frozen=True, slots=True)
class Plan:
    """A request that may run.

    ``known_needs`` has those of each item whose digest came with the request, None for a URL. ``inline`` has
    the bytes that came with it, by media id. ``source_keys`` are the keys of the memos that may answer for a
    download, by URL; there are none when ``url_ttl`` is 0.
    """

    record: JobRecord
    model: ModelPlans
    known_needs: Sequence[Needs | None]
    inline: Mapping[str, bytes]
    source_keys: Mapping[str, str]
    wait: float
    on_disconnect: OnDisconnect

    @property
    def items(self) -> tuple[Item, ...]:
        """The items, in the order of the request."""
        return self.record.items

    def keys(self, memos: Sequence[SourceMemo | None]) -> list[str]:
        """The embedding keys to look up, each once, where the URLs of ``source_keys`` have these memos."""
        return list(dict.fromkeys(key for *_, needs in self._needs(memos) for key in needs.key_list()))

    def found(self, memos: Sequence[SourceMemo | None], cached: Mapping[str, PartRecord]) -> dict[int, Found]:
        """What is final and what is missing, by item index; items whose digest is not known are left out."""
        return {
            item.index: found_of(item, digest, needs, cached) for item, digest, needs in self._needs(memos)
        }

    def _needs(self, memos: Sequence[SourceMemo | None]) -> Iterator[tuple[Item, str, Needs]]:
        """Each item whose digest is known without a download, with its digest and its needs."""
        now, ttl = self.record.created, self.model.settings.url_ttl
        by_url = {
            url: digest_of_memo(memo, url_ttl=ttl, now=now)
            for url, memo in zip(self.source_keys, memos, strict=True)
        }
        for item, needs in zip(self.items, self.known_needs, strict=True):
            digest = item.source.media_id or by_url.get(item.source.url or "")
            if digest is not None:
                yield item, digest, needs or self.model.needs(item, digest)


class Planner:
    """Plans requests, and keeps what it admitted lately for each model of the config. Safe for threads."""

    def __init__(self, settings: Settings) -> None:
        """Nothing is kept yet."""
        self._settings = settings
        self._models: dict[str, ModelPlans] = {}

    def plan(
        self,
        request: EncodeRequest,
        *,
        name: str,
        model: ModelConfig,
        cards: Mapping[Modality, EncoderCard],
    ) -> Plan:
        """Check every item of a request for a ``named_model``; the first fault refuses all of it.

        Raises:
            CallerFault: an option or a source is wrong; the item is named.
            EncoderNotReady: an encoder of the model has not been announced yet.
        """
        plans = self._models.get(name)
        if plans is None or plans.cards != cards:
            plans = self._models[name] = ModelPlans(model, cards, self._settings)
        admitted = [plans.admitted(index, item) for index, item in enumerate(request.items)]
        items = tuple(item for item, _ in admitted)
        return Plan(
            record=_record_of(request, items, name=name, settings=self._settings),
            model=plans,
            known_needs=[_needs_now(plans, item) for item in items],
            inline={
                item.source.media_id: data
                for item, data in admitted
                if data is not None and item.source.media_id is not None
            },
            source_keys=_source_keys(items) if self._settings.url_ttl > 0 else {},
            wait=request.wait,
            on_disconnect=request.on_disconnect,
        )


def _record_of(
    request: EncodeRequest, items: tuple[Item, ...], *, name: str, settings: Settings
) -> JobRecord:
    """A new job for a request whose items were admitted, as of now."""
    now = time.time()
    return JobRecord(
        job_id=uuid.uuid4().hex,
        model=name,
        created=now,
        deadline=now + (settings.job_deadline if request.deadline is None else request.deadline),
        priority=request.priority,
        items=items,
        ids=tuple(item.id for item in request.items),
    )


def _needs_now(plans: ModelPlans, item: Item) -> Needs | None:
    digest = item.source.media_id
    return None if digest is None else plans.needs(item, digest)


def _source_keys(items: Sequence[Item]) -> dict[str, str]:
    urls = dict.fromkeys(item.source.url for item in items if item.source.url is not None)
    return {url: source_key(url) if len(url) > _MAX_URL else _kept_source_key(url) for url in urls}
