"""The JSON of an answer that consists of cached items, put together from texts that are made once.

It is the JSON of ``api.answers.job_answer``, which a test holds it to.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import orjson

from api.answers import part_answer
from api.hit_lookup import ItemHit
from epd.contracts.answers import Usage
from epd.contracts.job import JobRecord, PartRecord, State
from epd.contracts.media import Modality
from epd.contracts.metadata import Entry
from epd.store.entry_memory import EntryTexts


class HitAnswers:
    """Writes answers; keeps the texts of embeddings that were answered lately."""

    def __init__(self) -> None:
        """Nothing is kept yet."""
        self._texts = EntryTexts(_part_text)

    def json(self, record: JobRecord, hits: Sequence[ItemHit]) -> bytes:
        """A job whose items all are cached."""
        items = ",".join(map(self._item, hits, record.ids))
        job_id, model = _quoted(record.job_id), _quoted(record.model)
        usage = _usage(hits).model_dump_json()
        return (
            f'{{"job_id":{job_id},"model":{model},"state":"{State.DONE}","items":[{items}],"usage":{usage}}}'
        ).encode()

    def _item(self, hit: ItemHit, own_id: str | None) -> str:
        """An item has the fields of its main part and three more."""
        main, tracks = self._texts.of(hit.main), "" if hit.audio is None else self._texts.of(hit.audio)
        return f'{main[:-1]},"index":{hit.item.index},"id":{_quoted(own_id)},"tracks":[{tracks}]}}'


def _part_text(entry: Entry) -> str:
    done = PartRecord.done(entry, cached=True)
    return part_answer(entry.metadata.modality, done).model_dump_json()


def _quoted(text: str | None) -> str:
    return orjson.dumps(text).decode()


def _usage(hits: Iterable[ItemHit]) -> Usage:
    rows = dict.fromkeys(Modality, 0)
    for hit in hits:
        rows[hit.item.modality] += hit.main.ref.tokens
        rows[Modality.AUDIO] += 0 if hit.audio is None else hit.audio.ref.tokens
    return Usage(
        image_tokens=rows[Modality.IMAGE],
        video_tokens=rows[Modality.VIDEO],
        audio_tokens=rows[Modality.AUDIO],
        total_tokens=sum(rows.values()),
    )
