"""The load: clients that submit jobs, insist until each is accepted, and follow all of them to their end."""

from __future__ import annotations

import queue
import random
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass

import httpx

from epd.client import Client
from epd.client.calls import Unreachable
from epd.contracts.errors import EpdError, NotFound
from tests.chaos.corpus import Thing
from tests.chaos.ledger import Ledger, Order
from tests.chaos.site import Site

_SENDERS = 4
_PAUSE = 0.1
_POLL = 0.1
_ACCEPT_LIMIT = 90.0
_REQUEST_LIMIT = 10.0
_BIGGEST_JOB = 8


@dataclass(frozen=True, slots=True)
class _Job:
    model: str
    things: Sequence[Thing]
    pace: float
    deadline: float | None


class Load:
    """Submits things in jobs of random size; half of the items by URL, half inline."""

    def __init__(self, api_url: str, site: Site, ledger: Ledger, dice: random.Random) -> None:
        self._api_url = api_url
        self._site = site
        self._dice = dice
        self.ledger = ledger
        self.not_accepted: list[str] = []
        self._jobs: queue.SimpleQueue[_Job] = queue.SimpleQueue()
        self._to_send = 0
        self._sent = threading.Semaphore(0)
        self._stopping = threading.Event()
        self._threads = [threading.Thread(target=self._send, daemon=True) for _ in range(_SENDERS)]
        self._threads.append(threading.Thread(target=self._follow, daemon=True))

    def start(self) -> None:
        """Start the clients."""
        for thread in self._threads:
            thread.start()

    def add(
        self, things: Sequence[Thing], model: str, *, pace: float = 0.0, deadline: float | None = None
    ) -> None:
        """Queue things for sending, cut into jobs; ``pace`` is each sender's pause after one, in seconds."""
        left = list(things)
        while left:
            size = self._dice.randint(1, _BIGGEST_JOB)
            job, left = left[:size], left[size:]
            self._to_send += 1
            self._jobs.put(_Job(model, job, pace, deadline))

    def finish(self, limit: float) -> bool:
        """Wait until all was sent and everything accepted is final; False after ``limit`` seconds."""
        end = time.monotonic() + limit
        while self._to_send:
            if not self._sent.acquire(timeout=max(0.0, end - time.monotonic())):
                return False
            self._to_send -= 1
        while self.ledger.open_orders():
            if time.monotonic() > end:
                return False
            time.sleep(_POLL)
        return True

    def close(self) -> None:
        """End the clients."""
        self._stopping.set()
        for thread in self._threads:
            thread.join(_REQUEST_LIMIT)

    def _send(self) -> None:
        with Client(self._api_url, timeout=_REQUEST_LIMIT) as client:
            while not self._stopping.is_set():
                try:
                    job = self._jobs.get(timeout=_POLL)
                except queue.Empty:
                    continue
                self._insist(client, job)
                self._sent.release()
                self._stopping.wait(job.pace)

    def _insist(self, client: Client, job: _Job) -> None:
        """Submit until it is accepted. An answer that got lost may leave a second job, which is nobody's."""
        bodies = [self._body(thing, place) for place, thing in enumerate(job.things)]
        end = time.monotonic() + _ACCEPT_LIMIT
        while not self._stopping.is_set():
            try:
                answer = client.submit(bodies, model=job.model, deadline=job.deadline)
            except EpdError as error:
                self.ledger.refuse(error.code)
                if not error.retryable or time.monotonic() > end:
                    self.not_accepted.append(f"{error.code}: {error}")
                    return
                self._stopping.wait(_PAUSE)
            else:
                self.ledger.accept(Order(answer.job_id, job.model, job.things))
                return

    def _body(self, thing: Thing, place: int) -> dict[str, object]:
        if place % 2:
            return {"type": thing.type, "data": thing.data}
        return {"type": thing.type, "url": self._site.offer(thing)}

    def _follow(self) -> None:
        with Client(self._api_url, timeout=_REQUEST_LIMIT) as client:
            while not self._stopping.wait(_POLL):
                for order in self.ledger.open_orders():
                    if self._stopping.is_set() or not self._look_at(client, order):
                        break

    def _look_at(self, client: Client, order: Order) -> bool:
        """Read a job; False when the server does not answer now."""
        try:
            order.answer = client.job(order.job_id)
        except NotFound:
            order.gone = True
        except (Unreachable, httpx.HTTPError):
            return False
        except EpdError as error:
            return error.retryable
        return True
