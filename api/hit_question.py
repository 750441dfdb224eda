"""What a request asks of the cache, as far as its own text tells; and what it needs, once facts are known."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from api.admission import admit, named_model
from api.hit_lookup import NeedsMemory
from api.schemas import EncodeRequest
from api.submission import record_of
from epd.config import Config, ModelConfig
from epd.contracts.job import JobRecord
from epd.contracts.media import Item
from epd.identity import source_key
from epd.inline import is_data_uri
from epd.lookup import Needs, by_track, digest_of_memo, encoders_of
from epd.settings import Settings
from epd.store.hits import Facts
from epd.store.values import SourceMemo


@dataclass(frozen=True, slots=True)
class Plan:
    """A job that could be answered at once, the needs of each of its items, and their keys, each once."""

    record: JobRecord
    needs: Sequence[Needs]
    keys: Sequence[str]


@dataclass(frozen=True, slots=True)
class Question:
    """A request within the limits. ``source_keys`` are those of ``urls``."""

    request: EncodeRequest
    settings: Settings
    name: str
    model: ModelConfig
    urls: Sequence[str]
    source_keys: Sequence[str]

    @property
    def encoders(self) -> list[str]:
        """Names of the model's encoders."""
        return list(encoders_of(self.model).values())

    def plan(self, facts: Facts, memory: NeedsMemory) -> Plan | None:
        """What follows from facts about ``encoders`` and ``source_keys``; None where a digest is not known.

        Raises:
            CallerFault: the request is at fault.
            EncoderNotReady: an encoder of the model has not been announced yet.
        """
        cards = by_track(encoders_of(self.model), facts.cards)
        admitted = admit(self.request, name=self.name, model=self.model, cards=cards, settings=self.settings)
        memos = dict(zip(self.urls, facts.memos, strict=True))
        known = _with_digests(admitted.items, memos, self.settings.url_ttl)
        if known is None:
            return None
        needs = memory.of(known, name=self.name, model=self.model, cards=cards)
        keys = list(dict.fromkeys(key for need in needs for key in need.key_list()))
        return Plan(record_of(admitted), needs, keys)


def question_of(request: EncodeRequest, *, config: Config, settings: Settings) -> Question | None:
    """None where no memo counts, or a URL is none, which the ordinary path will say.

    Raises:
        CallerFault: there is no such model, or the request is over a limit.
    """
    name, model = named_model(request, config=config, settings=settings)
    urls = [item.url for item in request.items if item.url is not None and not is_data_uri(item.url)]
    if urls and settings.url_ttl <= 0:
        return None
    urls = list(dict.fromkeys(urls))
    try:
        source_keys = [source_key(url) for url in urls]
    except ValueError:
        return None
    return Question(request, settings, name, model, urls, source_keys)


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
