"""The tickets that this worker holds, and the thread that keeps their flights' leases alive."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable

from epd.contracts.errors import StoreUnavailable
from epd.store.redis.flights import Flights
from gpu_worker.ticket import Ticket

_log = logging.getLogger(__name__)

#: A lease is renewed this often in its life, so that one lost renewal does no harm.
_RENEWALS_PER_LEASE = 3


class TicketLedger:
    """Tickets by id, from delivery to release. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._tickets: dict[str, Ticket] = {}

    def __len__(self) -> int:
        with self._lock:
            return len(self._tickets)

    def put(self, ticket: Ticket) -> None:
        """Hold a ticket, or its newer form."""
        with self._lock:
            self._tickets[ticket.id] = ticket

    def get(self, ticket_id: str) -> Ticket | None:
        """The ticket, or None once it was released."""
        with self._lock:
            return self._tickets.get(ticket_id)

    def begin(self, ticket_ids: Iterable[str], at: float) -> None:
        """Note when the batch of these was formed, in Unix seconds."""
        with self._lock:
            for ticket_id in ticket_ids:
                if ticket_id in self._tickets:
                    self._tickets[ticket_id] = self._tickets[ticket_id].begun(at)

    def pop(self, ticket_id: str) -> Ticket | None:
        """Release a ticket."""
        with self._lock:
            return self._tickets.pop(ticket_id, None)

    def embedding_keys(self) -> set[str]:
        """The embedding keys of all held tickets."""
        with self._lock:
            return {ticket.message.wanted.key for ticket in self._tickets.values()}


class LeaseKeeper:
    """Renews the leases of all held flights, so that no reaper starts them a second time."""

    def __init__(self, flights: Flights, ledger: TicketLedger, lease: float) -> None:
        self._flights = flights
        self._ledger = ledger
        self._period = lease / _RENEWALS_PER_LEASE
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="encode-leases", daemon=True)

    def start(self) -> None:
        """Renew every third of a lease from now on."""
        self._thread.start()

    def stop(self) -> None:
        """Let the leases run out."""
        self._stopped.set()

    def _run(self) -> None:
        while not self._stopped.wait(self._period):
            try:
                for key in self._ledger.embedding_keys():
                    self._flights.extend(key)
            except StoreUnavailable as error:
                _log.warning("leases were not renewed: %s", error)
            except Exception:
                _log.exception("leases were not renewed")
