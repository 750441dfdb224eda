"""What of a request is answered by the cache: items whose digest is known without a download."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from api.admission import Admitted
from epd.contracts.job import PartId, PartRecord
from epd.contracts.media import Item
from epd.lookup import Found, fresh_digest, look_up
from epd.store.base import Store


def find_cached(admitted: Admitted, store: Store, *, url_ttl: float) -> dict[int, Found]:
    """By item index, what is there and what is missing; items of unknown digest are left out.

    One round trip for all items, and one for each URL inside the freshness window (``url_ttl`` seconds).
    """
    digests = [(item, fresh_digest(item, store.sources, url_ttl=url_ttl)) for item in admitted.items]
    known = [(item, digest) for item, digest in digests if digest is not None]
    answers = look_up(known, model=admitted.model, cards=admitted.cards, embeddings=store.embeddings)
    return {found.item.index: found for found in answers}


def first_parts(items: Sequence[Item], found: Mapping[int, Found]) -> dict[PartId, PartRecord]:
    """The parts that a new job starts with: final where the cache answers, else queued.

    A video whose frames are cached and whose sound is not starts with both parts, or the job would be
    final before its sound is encoded.
    """
    parts: dict[PartId, PartRecord] = {}
    for item in items:
        answer = found.get(item.index)
        if answer is None or answer.main is not None:
            parts[PartId(item.index, item.modality)] = PartRecord()
        if answer is not None:
            parts |= answer.finished
            parts |= {part: PartRecord() for part in answer.certain_parts if part not in parts}
    return parts
