"""Requests that the cache answers wholly, on the event loop: no thread, one round trip, no message.

A thread for each request would cost more than the answer: each of its waits for the store gives the
interpreter's lock away, and gets it back only after whatever else runs. And each wait of the loop costs more
than what it waits for, since the process is put to sleep and woken; so what this process read before is
taken as a guess, and the one round trip looks whether it still holds. What is not at hand here is left to
``api.submission``, which starts from the beginning; so this path answers, or has changed nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from api.hit_answer import HitAnswers
from api.hit_lookup import ItemHit, item_hits
from api.hit_question import Plan, Question, question_of
from api.item_memory import ItemMemory
from api.schemas import EncodeRequest
from api.services import Services
from epd.contracts.errors import EpdError
from epd.contracts.job import PartId
from epd.contracts.metadata import Entry
from epd.store.hits import Facts, Guess, Hits
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
        self._memory = ItemMemory(services.settings)
        self._answers = HitAnswers()

    async def answer(self, request: EncodeRequest, trace: Mapping[str, str]) -> HitAnswer | None:
        """The job of a request whose items all are cached, recorded; None where one may not be.

        Raises:
            CallerFault: the request is at fault.
            EncoderNotReady, StoreUnavailable: come again.
        """
        if len(request.items) > MAX_ITEMS:
            return None
        services = self._services
        question = question_of(request, config=services.config, settings=services.settings)
        if question is None:
            return None
        return await self._guessed(question, trace) or await self._looked_up(question, trace)

    async def _guessed(self, question: Question, trace: Mapping[str, str]) -> HitAnswer | None:
        """The answer that would have been right when its grounds were last read, if they still stand."""
        facts = self._hits.recalled(question.encoders, question.source_keys)
        plan = None if facts is None else self._recalled_plan(question, facts)
        if facts is None or plan is None:
            return None
        found = _found(plan, self._hits.recalled_entries(plan.keys))
        if found is None:
            return None
        guess = Guess(question.encoders, question.source_keys, facts, plan.record, _parts(found))
        with span("epd.submit", trace, items=len(found), cached=len(found)):
            right = await self._hits.confirm(guess)
        return self._answer(plan, found) if right else None

    def _recalled_plan(self, question: Question, facts: Facts) -> Plan | None:
        try:
            return question.plan(facts, self._memory)
        except EpdError:
            return None  # so it was by the facts of then; those of now have the word

    async def _looked_up(self, question: Question, trace: Mapping[str, str]) -> HitAnswer | None:
        """The answer in three round trips. The job is written first: it may be asked for by its id."""
        facts = await self._hits.facts(question.encoders, question.source_keys)
        plan = question.plan(facts, self._memory)
        found = None if plan is None else _found(plan, await self._hits.lookup(plan.keys))
        if plan is None or found is None:
            return None
        with span("epd.submit", trace, items=len(found), cached=len(found)):
            await self._hits.create(plan.record, _parts(found))
        return self._answer(plan, found)

    def _answer(self, plan: Plan, found: Sequence[ItemHit]) -> HitAnswer:
        return HitAnswer(plan.record.job_id, self._answers.json(plan.record, found), found)


def _found(plan: Plan, entries: Sequence[Entry | None]) -> list[ItemHit] | None:
    return item_hits(plan.record.items, plan.needs, dict(zip(plan.keys, entries, strict=True)))


def _parts(found: Sequence[ItemHit]) -> dict[PartId, Entry]:
    parts: dict[PartId, Entry] = {}
    for hit in found:
        parts |= hit.parts()
    return parts
