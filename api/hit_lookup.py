"""What a request needs of the cache, as far as the event loop can answer it: all of it, or nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from epd.config import ModelConfig
from epd.contracts.card import EncoderCard
from epd.contracts.job import PartId
from epd.contracts.media import AudioTrackMode, Item, ItemOptions, Modality
from epd.contracts.metadata import Entry
from epd.lookup import Needs, is_silent, needs_of
from epd.recent import Recent

#: Items whose needs are kept, some 1 KB each.
_LIMIT = 8192

_Known = Recent[tuple[str, Modality, ItemOptions], Needs]


@dataclass(frozen=True, slots=True)
class ItemHit:
    """An item with the entries of all that it needs; ``audio`` where it is a video with sound."""

    item: Item
    main: Entry
    audio: Entry | None = None

    def parts(self) -> dict[PartId, Entry]:
        """Its parts, the main one first."""
        main = {PartId(self.item.index, self.item.modality): self.main}
        return main if self.audio is None else main | {PartId(self.item.index, Modality.AUDIO): self.audio}

    @property
    def saved_bytes(self) -> int:
        """As ``Found.saved_bytes``."""
        if self.item.source.url is None:
            return 0
        entries = (self.main,) if self.audio is None else (self.main, self.audio)
        return max(entry.metadata.source_bytes or 0 for entry in entries)


class NeedsMemory:
    """The needs of items by digest, type and options: building keys is a good part of an answer's cost.

    They belong to the cards that they were built with; a model whose cards have changed is begun anew.
    """

    def __init__(self, limit: int = _LIMIT) -> None:
        """Keep ``limit`` needs of each model of the config."""
        self._limit = limit
        self._models: dict[str, tuple[Mapping[Modality, EncoderCard], _Known]] = {}

    def of(
        self,
        known: Sequence[tuple[Item, str]],
        *,
        name: str,
        model: ModelConfig,
        cards: Mapping[Modality, EncoderCard],
    ) -> list[Needs]:
        """As ``needs_of`` for items with their digests; ``name`` is the model's in the config."""
        before = self._models.get(name)
        if before is None or before[0] != cards:
            before = self._models[name] = (cards, Recent(self._limit))
        return [_remembered(before[1], item, digest, model, cards) for item, digest in known]


def _remembered(
    memory: _Known, item: Item, digest: str, model: ModelConfig, cards: Mapping[Modality, EncoderCard]
) -> Needs:
    question = (digest, item.modality, item.options)
    needs = memory.get(question)
    if needs is None:
        needs = needs_of(item, digest, model=model, cards=cards)
        memory.put(question, needs)
    return needs


def item_hits(
    items: Sequence[Item], needs: Sequence[Needs], entries: Mapping[str, Entry | None]
) -> list[ItemHit] | None:
    """The items' hits; None where one lacks an entry, or fails by what its entry says (``audio_track``)."""
    hits: list[ItemHit] = []
    for item, need in zip(items, needs, strict=True):
        main = entries.get(need.main.key)
        if main is None:
            return None
        audio: Entry | None = None
        if need.audio is not None and is_silent(main):
            if item.options.audio_track is AudioTrackMode.REQUIRE:
                return None
        elif need.audio is not None:
            audio = entries.get(need.audio.key)
            if audio is None:
                return None
        hits.append(ItemHit(item, main, audio))
    return hits
