"""What a request asks of the cache, as far as its own text tells; and what it needs, once facts are known."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from api.admission import named_model
from api.item_memory import ItemMemory
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

#: Longer URLs have their keys made anew each time: what is kept is bounded in characters too.
_MAX_KEPT = 1024

_kept_source_key = lru_cache(maxsize=4096)(source_key)


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

    def plan(self, facts: Facts, memory: ItemMemory) -> Plan | None:
        """What follows from facts about ``encoders`` and ``source_keys``; None where a digest is not known.

        Raises:
            CallerFault: the request is at fault.
            EncoderNotReady: an encoder of the model has not been announced yet.
        """
        cards = by_track(encoders_of(self.model), facts.cards)
        known = memory.of(self.name, self.model, cards)
        items = [known.item(index, asked) for index, asked in enumerate(self.request.items)]
        digests = self._digests(items, facts.memos)
        if None in digests:
            return None
        needs = [known.needs(item, digest) for item, digest in zip(items, digests, strict=True) if digest]
        keys = list(dict.fromkeys(key for need in needs for key in need.key_list()))
        return Plan(record_of(self.request, items, name=self.name, settings=self.settings), needs, keys)

    def _digests(self, items: Sequence[Item], memos: Sequence[SourceMemo | None]) -> list[str | None]:
        """Of each item, or None where it is not known without a download."""
        now, ttl = time.time(), self.settings.url_ttl
        by_url = {
            url: digest_of_memo(memo, url_ttl=ttl, now=now)
            for url, memo in zip(self.urls, memos, strict=True)
        }
        return [
            item.source.media_id if item.source.url is None else by_url[item.source.url] for item in items
        ]


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
        source_keys = [(source_key if len(url) > _MAX_KEPT else _kept_source_key)(url) for url in urls]
    except ValueError:
        return None
    return Question(request, settings, name, model, urls, source_keys)
