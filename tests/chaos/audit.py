"""After the storm: is everything that was accepted final, right and there, and did each part end once?"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from epd.client import Client
from epd.contracts.errors import EpdError, NotFound
from epd.contracts.job import State
from epd.contracts.media import Modality
from epd.contracts.responses import ItemAnswer, JobAnswer, PartAnswer
from epd.store import keys
from tests.chaos.checkpoints import TWIN
from tests.chaos.corpus import Thing
from tests.chaos.ledger import Ledger, Order
from tests.chaos.notices import NoticeWatch
from tests.chaos.server import Server

#: Largest difference between two encodes of one content, relative to the largest value: batches differ in
#: size and padding, so the sums are added up in another order.
TOLERANCE = 1e-3
_CHUNK = 16
_PAIRS = 8
_CALM_LIMIT = 240.0

Rows = npt.NDArray[Any]


@dataclass
class Audit:
    """Lost items (not final, or without right rows) and duplicated parts, each with its reason.

    ``gone``: items of jobs that a lost store may forget. ``blind``: media so alike that a mix-up
    of them would not have been seen.
    """

    gone: int = 0
    blind: list[str] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)
    duplicated: list[str] = field(default_factory=list)


def audit(client: Client, ledger: Ledger, store: Server, watch: NoticeWatch, *, gone_is_lost: bool) -> Audit:
    """Look at every order. The stack has to be calm: the references are encoded on it, by the twins."""
    found = Audit()
    if not gone_is_lost:
        _note_forgotten(client, ledger)
    references = _references(client, ledger)
    found.blind = _alike(client, list(references.values()))
    for order in ledger.orders:
        if order.gone and not gone_is_lost:
            found.gone += order.unfinished
            continue
        for place, thing in enumerate(order.things):
            reason = _why_lost(client, order, place, references.get(thing.name))
            if reason:
                found.lost.append(f"{order.job_id}[{place}] {thing.name}: {reason}")
        found.duplicated += _miscounts(client, store, order)
    own = {order.job_id for order in ledger.orders}
    found.duplicated += [f"{job}/{part} ended twice" for job, part in watch.ended_twice() if job in own]
    return found


def _alike(client: Client, references: Sequence[ItemAnswer]) -> list[str]:
    """Neighbours among the images whose rows differ by little more than the tolerance."""
    images = [one for one in references if one.type is Modality.IMAGE and one.state is State.DONE]
    pairs = list(itertools.pairwise(images))[:_PAIRS]
    return [
        f"{one.embedding} and {other.embedding} are alike"
        for one, other in pairs
        if relative_difference(_rows(client, one), _rows(client, other)) < 10 * TOLERANCE
    ]


def _note_forgotten(client: Client, ledger: Ledger) -> None:
    """A lost store forgets the jobs of before, the final ones too."""
    for order in ledger.orders:
        try:
            client.job(order.job_id)
        except NotFound:
            order.gone = True


def _why_lost(client: Client, order: Order, place: int, reference: ItemAnswer | None) -> str:
    if order.gone or order.answer is None:
        return "the job is gone"
    item = order.answer.items[place]
    if order.is_open:
        return f"still {item.state} {_stages(item)}"
    if item.state is not State.DONE:
        return ""
    if reference is None or reference.state is not State.DONE:
        return f"no reference: {reference and reference.error}"
    mine, expected = (item, *item.tracks), (reference, *reference.tracks)
    if [part.type for part in mine] != [part.type for part in expected]:
        return f"tracks {[part.type for part in mine]}, not {[part.type for part in expected]}"
    return next((why for pair in zip(mine, expected, strict=True) if (why := _difference(client, *pair))), "")


def _stages(item: ItemAnswer) -> str:
    return f"{item.timings}"


def _difference(client: Client, mine: PartAnswer, expected: PartAnswer) -> str:
    try:
        rows, right = _rows(client, mine), _rows(client, expected)
    except EpdError as error:
        return f"{mine.type}: {error.code}: {error}"
    if rows.shape != right.shape:
        return f"{mine.type}: shape {rows.shape}, not {right.shape}"
    apart = relative_difference(rows, right)
    return "" if apart <= TOLERANCE else f"{mine.type}: differs by {apart:.2g}"


def _rows(client: Client, part: PartAnswer) -> Rows:
    assert part.embedding is not None
    assert part.metadata is not None
    rows: Rows = client.embedding(part.embedding.key)
    if len(rows) != part.metadata.token_count or client.metadata(part.embedding.key) != part.metadata:
        raise EpdError("rows and metadata disagree")
    return rows


def relative_difference(rows: Rows, right: Rows) -> float:
    """The largest absolute difference over the largest absolute value."""
    return float(np.abs(rows - right).max() / np.abs(right).max())


def _references(client: Client, ledger: Ledger) -> Mapping[str, ItemAnswer]:
    """The twin's answer for each thing that is done, by the thing's name."""
    things: dict[str, dict[str, Thing]] = {}
    for order in ledger.orders:
        if order.answer is not None:
            pairs = zip(order.things, order.answer.items, strict=True)
            done = {thing.name: thing for thing, item in pairs if item.state is State.DONE}
            things.setdefault(order.model, {}).update(done)
    return {
        thing.name: item
        for model, named in things.items()
        for chunk in _chunks(list(named.values()))
        for thing, item in zip(chunk, _encode_calmly(client, chunk, model).items, strict=True)
    }


def _encode_calmly(client: Client, chunk: Sequence[Thing], model: str) -> JobAnswer:
    bodies = [{"type": thing.type, "data": thing.data} for thing in chunk]
    return client.encode(bodies, model=model + TWIN, wait=_CALM_LIMIT)


def _chunks(things: list[Thing]) -> Iterator[Sequence[Thing]]:
    iterator = iter(things)
    while chunk := list(itertools.islice(iterator, _CHUNK)):
        yield chunk


def _miscounts(client: Client, store: Server, order: Order) -> list[str]:
    """A final job's record: no part is counted open, each ended once, and it reads as it read before."""
    if order.gone or order.is_open:
        return []
    record: dict[str, str] = store.client.hgetall(keys.job(order.job_id))
    parts = sum(name.startswith("part:") for name in record)
    ends = sum(name.startswith("final:") for name in record)
    wrong = []
    if (record.get("open"), ends) != ("0", parts):
        wrong.append(f"{order.job_id}: open {record.get('open')}, {ends} ends of {parts} parts")
    again = client.job(order.job_id)
    if again != order.answer:
        wrong.append(f"{order.job_id}: its answer has changed since it was final")
    return wrong
