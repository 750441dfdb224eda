"""The desk between deliverer and engine: takes messages in, and gives verdicts out.

    host -> accept -> intake thread: parse, admit -> engine -> reply -> host: ack -> release: free the blob

Knows the store, not Celery. Every accepted ticket gets exactly one verdict, unless the worker stops first.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from epd.contracts.errors import Internal
from epd.contracts.messages import EncodeMessage
from gpu_worker.admission import Admission
from gpu_worker.engine.engine import Engine
from gpu_worker.engine.slot import Dropped, DropReason, Outcome, Settled, Slot
from gpu_worker.host import Host
from gpu_worker.ledger import TicketLedger
from gpu_worker.reply import Reply
from gpu_worker.ticket import Ticket
from gpu_worker.verdict import Fate, Verdict
from tasks.flow.context import Context

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Delivery:
    ticket_id: str
    document: Any


class Desk:
    """The engine's observer, and the host's counterpart. ``open`` it before the first ``accept``."""

    def __init__(self, *, context: Context, admission: Admission, reply: Reply) -> None:
        self.ledger = TicketLedger()
        self._clock = context.clock
        self._admission = admission
        self._reply = reply
        self._deliveries: queue.SimpleQueue[_Delivery | None] = queue.SimpleQueue()
        self._intake = threading.Thread(target=self._intake_loop, name="encode-intake", daemon=True)
        self._closing = threading.Event()
        self._engine: Engine | None = None
        self._host: Host | None = None

    def open(self, engine: Engine, host: Host) -> None:
        """Connect both sides and start to take messages in."""
        self._engine, self._host = engine, host
        self._intake.start()

    def accept(self, ticket_id: str, document: Any) -> None:
        """Take a message in; never blocks. ``document`` is the message as plain dicts and lists."""
        self._deliveries.put(_Delivery(ticket_id, document))

    def cancel(self, ticket_id: str) -> bool:
        """Drop a ticket that is still queued in the engine."""
        return self._engine is not None and self._engine.cancel(ticket_id)

    def drop(self, document: Mapping[str, Any], reason: DropReason) -> None:
        """End a message that the deliverer has acked already without running it."""
        ticket = self._parsed("dropped", document)
        if isinstance(ticket, Ticket):
            self._reply.settle([(ticket, Dropped(reason))])
            self._reply.free_blobs([ticket.message])

    def release(self, ticket_ids: Sequence[str]) -> None:
        """The messages of these were acked: forget them and free their blobs."""
        tickets = [self.ledger.pop(ticket_id) for ticket_id in ticket_ids]
        self._reply.free_blobs([ticket.message for ticket in tickets if ticket is not None])

    def close(self, timeout: float) -> None:
        """Stop to take messages in. What was not looked at yet stays unacked."""
        self._closing.set()
        self._deliveries.put(None)
        if self._intake.is_alive():
            self._intake.join(timeout)

    # intake thread

    def _intake_loop(self) -> None:
        while (delivery := self._deliveries.get()) is not None:
            if self._closing.is_set():
                return
            try:
                self._take_in(delivery)
            except Exception:
                _log.exception("ticket %s could not be taken in", delivery.ticket_id)
                error = Internal("the encode worker failed; its log tells why")
                self._tell([Verdict(delivery.ticket_id, Fate.FAILED, error=error)])

    def _take_in(self, delivery: _Delivery) -> None:
        ticket = self._parsed(delivery.ticket_id, delivery.document)
        if isinstance(ticket, Verdict):
            self._tell([ticket])
            return
        self.ledger.put(ticket)
        admitted = self._admission.admit(ticket)
        if isinstance(admitted, Path):
            now = self._clock()
            assert self._engine is not None
            self.ledger.put(ticket.asked(now))
            self._engine.submit(ticket.slot(admitted, now))
        else:
            self._settle([(ticket, admitted)])

    def _parsed(self, ticket_id: str, document: Any) -> Ticket | Verdict:
        try:
            return Ticket(id=ticket_id, message=EncodeMessage.model_validate(document))
        except ValidationError as error:
            _log.error("not an encode message: %s", error)
            return Verdict(ticket_id, Fate.FAILED, error=Internal("not an encode message"))

    # the engine's observer

    def still_wanted(self, slot: Slot) -> bool:
        """Asked on the staging thread."""
        ticket = self.ledger.get(slot.id)
        assert self._host is not None
        if ticket is None or self._host.is_withdrawn(slot.id):
            return False
        return self._admission.is_still_wanted(ticket)

    def on_begun(self, slots: Sequence[Slot]) -> None:
        """Pass on, with the time noted."""
        ids = [slot.id for slot in slots]
        self.ledger.begin(ids, self._clock())
        assert self._host is not None
        self._host.on_begun(ids)

    def on_settled(self, settled: Sequence[Settled]) -> None:
        """Make the outcomes known, then let the host ack."""
        tickets = [(self.ledger.get(one.slot.id), one.outcome) for one in settled]
        self._settle([(ticket, outcome) for ticket, outcome in tickets if ticket is not None])

    def on_device_lost(self, error: BaseException) -> None:
        """Only a new process helps."""
        assert self._host is not None
        self._host.on_fatal(error)

    def _settle(self, batch: Sequence[tuple[Ticket, Outcome]]) -> None:
        try:
            verdicts = self._reply.settle(batch)
        except Exception as trouble:
            _log.exception("%d outcomes could not be told", len(batch))
            error = Internal(f"the reply raised {type(trouble).__name__}")
            verdicts = [Verdict(ticket.id, Fate.FAILED, error=error) for ticket, _ in batch]
        self._tell(verdicts)

    def _tell(self, verdicts: Sequence[Verdict]) -> None:
        assert self._host is not None
        if verdicts:
            self._host.on_verdicts(verdicts)
