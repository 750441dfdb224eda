"""What was accepted, and what became of it. An order is one job that the API has answered 202 or 200 for."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from epd.contracts.job import FINAL_STATES, State
from epd.contracts.responses import JobAnswer, PartAnswer
from tests.chaos.corpus import Thing


@dataclass(slots=True)
class Order:
    """An accepted job: its things in order, and its last answer. ``gone``: the API knows it no more."""

    job_id: str
    model: str
    things: Sequence[Thing]
    answer: JobAnswer | None = None
    gone: bool = False

    @property
    def is_open(self) -> bool:
        """Something of it is still to come."""
        return not self.gone and (self.answer is None or self.answer.state not in FINAL_STATES)

    @property
    def unfinished(self) -> int:
        """Items that were not done or failed when the job was last read."""
        items = () if self.answer is None else self.answer.items
        return len(self.things) - sum(item.state in FINAL_STATES for item in items)


@dataclass
class Ledger:
    """All orders of a scenario, and what was refused before it was accepted, by code."""

    orders: list[Order] = field(default_factory=list)
    refused: Counter[str] = field(default_factory=Counter)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def accept(self, order: Order) -> None:
        """Note an accepted job."""
        with self._lock:
            self.orders.append(order)

    def refuse(self, code: str) -> None:
        """Note a refusal; the load tries again."""
        with self._lock:
            self.refused[code] += 1

    def open_orders(self) -> list[Order]:
        """The orders that are not final, oldest first."""
        with self._lock:
            return [order for order in self.orders if order.is_open]

    @property
    def submitted(self) -> int:
        """Accepted items."""
        with self._lock:
            return sum(len(order.things) for order in self.orders)

    @property
    def completed(self) -> int:
        """Items that are done, tracks and all."""
        return sum(item.state is State.DONE for answer in self._answers() for item in answer.items)

    @property
    def failed(self) -> Counter[str]:
        """Items that ended otherwise, by the code of their (or their track's) error."""
        codes: Counter[str] = Counter()
        for answer in self._answers():
            for item in answer.items:
                if item.state in FINAL_STATES and item.state is not State.DONE:
                    codes[_code((item, *item.tracks))] += 1
        return codes

    def _answers(self) -> list[JobAnswer]:
        return [order.answer for order in self.orders if order.answer is not None]


def _code(parts: Sequence[PartAnswer]) -> str:
    return next((part.error.code for part in parts if part.error is not None), "without_error")
