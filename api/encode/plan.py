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
from typing import NamedTuple

from api.encode.request import EncodeItem, EncodeRequest, OnDisconnect, admit_item
from api.encode.sources import GivenSource
from epd.config import ModelConfig
from epd.contracts.embedding import EncoderCard
from epd.contracts.errors import EpdError
from epd.contracts.job import JobRecord, PartRecord
from epd.contracts.media import Item, ItemOptions, Modality, Source
from epd.identity import source_key
from epd.lookup import Found, Needs, digest_of_memo, found_of, needs_of
from epd.settings import Settings
from epd.store.cache.async_cache import CachedPart, LookedUp
from epd.store.values import SourceMemo

#: Items of one model whose admission and needs are kept, some 1 KB each and their text.
LIMIT = 4096
#: Characters of a URL or of inline data beyond which an item is admitted each time. So the texts of one model
#: take 16 MB (four times that where each has a character beyond the basic plane), and their bytes 12 MB.
MAX_TEXT = 4096
#: Characters of a URL beyond which its key is computed each time.
_MAX_URL = 1024

_NO_OPTIONS: frozenset[str] = frozenset()
#: What an item needs does not depend on its place and source, once its digest is known.
_ANY_ITEM = Item(index=0, modality=Modality.IMAGE, source=Source(media_id="0" * 64))

_kept_source_key = lru_cache(maxsize=4096)(source_key)


class CachedItem(NamedTuple):
    """An item of which every part is done and cached; ``audio`` is the part of a video's audio track."""

    item: Item
    main: CachedPart
    audio: CachedPart | None


class Admitted(NamedTuple):
    """An item that was checked, the bytes that came with it, and its needs where its digest is known."""

    item: Item
    data: bytes | None
    needs: Needs | None


class ModelPlans:
    """What follows for an item from one model, its cards and the settings. Safe for threads."""

    def __init__(self, model: ModelConfig, cards: Mapping[Modality, EncoderCard], settings: Settings) -> None:
        """Nothing is kept yet."""
        self.model = model
        self.cards = cards
        self.settings = settings
        self._kept_admission = lru_cache(LIMIT)(self._admit)
        self._kept_needs = lru_cache(LIMIT)(self._needs)

    def admitted(self, index: int, item: EncodeItem) -> Admitted:
        """The item at its place in the request; raises as ``admit_item`` does."""
        given, options, names = GivenSource(item.type, item.url, item.data, item.media_id), None, _NO_OPTIONS
        if item.options.model_fields_set:
            options, names = item.options, frozenset(item.options.model_fields_set)
        if len(given.url or given.data or "") > MAX_TEXT:
            return self._admit(given, options, names, index)
        try:
            kept = self._kept_admission(given, options, names)
        except EpdError:  # raised again, by an admission that names the item by its own index
            return self._admit(given, options, names, index)
        if index == kept.item.index:
            return kept
        first, data, needs = kept
        here = Item(index=index, modality=first.modality, source=first.source, options=first.options)
        return Admitted(here, data, needs)

    def needs(self, item: Item, digest: str) -> Needs:
        """The embeddings of an item whose bytes have this digest."""
        options = item.options if item.options.model_fields_set else None
        return self._kept_needs(digest, item.modality, options)

    def _admit(
        self, given: GivenSource, options: ItemOptions | None, _: frozenset[str], index: int = 0
    ) -> Admitted:
        """Admit an item. The names of the options that the caller set are only part of the kept key.

        Equal options may differ in them: one that is set to its default is refused where it does not apply.
        """
        item, data = admit_item(
            index,
            given,
            options or ItemOptions(),
            model=self.model,
            cards=self.cards,
            settings=self.settings,
        )
        digest = item.source.media_id
        return Admitted(item, data, None if digest is None else self.needs(item, digest))

    def _needs(self, digest: str, modality: Modality, options: ItemOptions | None) -> Needs:
        item = _ANY_ITEM.model_copy(update={"modality": modality, "options": options or ItemOptions()})
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

    def cached(self, looked: LookedUp) -> list[CachedItem] | None:
        """All items, when each of them is cached and done; None otherwise."""
        cached: list[CachedItem] = []
        for item, digest, needs in self._needs(looked.memos):
            main, audio = looked.parts.get(needs.main.key), None
            if main is None:
                return None
            if needs.audio is not None:
                records = {key: looked.parts[key].record for key in needs.key_list() if key in looked.parts}
                found = found_of(item, digest, needs, records)
                if not found.complete or found.finished[found.main_part] is not main.record:
                    return None  # something is missing, or the item fails because the video has no audio
                if found.audio_part in found.finished:
                    audio = looked.parts[needs.audio.key]
            cached.append(CachedItem(item, main, audio))
        return cached if len(cached) == len(self.items) else None

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
        items = tuple(item for item, *_ in admitted)
        return Plan(
            record=_record_of(request, items, name=name, settings=self._settings),
            model=plans,
            known_needs=[needs for *_, needs in admitted],
            inline={
                item.source.media_id: data
                for item, data, _ in admitted
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


def _source_keys(items: Sequence[Item]) -> dict[str, str]:
    urls = dict.fromkeys(item.source.url for item in items if item.source.url is not None)
    return {url: source_key(url) if len(url) > _MAX_URL else _kept_source_key(url) for url in urls}
