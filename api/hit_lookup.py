"""What a request needs of the cache, as far as the event loop can answer it: all of it, or nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from epd.contracts.job import PartId
from epd.contracts.media import AudioTrackMode, Item, Modality
from epd.contracts.metadata import Entry
from epd.lookup import Needs, is_silent


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
