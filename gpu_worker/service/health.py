"""How a worker shows that it works: its cards in the store, gauges for its heartbeat, and a hang alarm."""

from __future__ import annotations

import faulthandler
import gc
import logging
import time
import types
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import psutil
import torch
from torch import Tensor

from epd.contracts.embedding import EncoderCard
from epd.contracts.errors import StoreUnavailable
from epd.processes import PeriodicThread, log_failure
from epd.telemetry.counters import Count, counter_key
from gpu_worker.encoders.base import Encoder
from gpu_worker.engine.forward import GraphFigures

if TYPE_CHECKING:
    from epd.store.records import Cards  # bench.gpu runs where redis is not installed

_log = logging.getLogger(__name__)

#: Seconds between two checks of whether the store still has the cards.
_CHECK_PERIOD = 1.0
#: Seconds between two tries to announce them at a start.
_PAUSE = 0.5

#: How often the alarm is postponed within its limit.
_POSTPONES_PER_LIMIT = 8

#: Objects that no encoder owns: code, which leads through its globals to the rest of the process.
_NOT_OWNED = (type, types.ModuleType, types.FunctionType, types.BuiltinFunctionType, types.CodeType)


class CardAnnouncer:
    """Publishes the encoder cards of one worker. Call ``restore_missing`` on one thread only."""

    def __init__(self, cards: Cards, own: Iterable[EncoderCard]) -> None:
        self._cards = cards
        self._own = tuple(own)
        self._checked_at = time.monotonic()

    def announce_all(self, timeout: float) -> None:
        """Publish every card.

        Raises:
            StoreUnavailable: the store was down for ``timeout`` seconds.
        """
        end = time.monotonic() + timeout
        while True:
            try:
                for card in self._own:
                    self._cards.announce(card)
                return
            except StoreUnavailable as error:
                if time.monotonic() + _PAUSE > end:
                    raise
                _log.warning("the cards cannot be announced yet: %s", error)
            time.sleep(_PAUSE)

    def restore_missing(self) -> None:
        """Publish cards that are gone, as after a restart of a store without persistence.

        A card of the same name from another worker stays: during an update the newest one counts.

        Raises:
            StoreUnavailable: the store does not answer.
        """
        if time.monotonic() - self._checked_at < _CHECK_PERIOD:
            return
        self._checked_at = time.monotonic()
        found = self._cards.get([card.name for card in self._own])
        for card, known in zip(self._own, found, strict=True):
            if known is None:
                _log.warning("the card of %s was gone and is announced again", card.name)
                self._cards.announce(card)


class InterpreterAlarm(PeriodicThread):
    """Ends the process when no Python code ran for ``limit`` seconds. A process can have only one."""

    def __init__(self, limit: float) -> None:
        period, failed = limit / _POSTPONES_PER_LIMIT, log_failure(_log, "postponing the interpreter alarm")
        super().__init__("interpreter-alarm", period, self._postpone, failed, wait_first=True)
        self._limit = limit

    def start(self) -> None:
        """Set the alarm, and keep postponing it."""
        self._postpone()
        super().start()

    def stop(self) -> None:
        """Cancel the alarm: a shutdown may take as long as it needs."""
        super().stop()
        faulthandler.cancel_dump_traceback_later()

    def run(self) -> None:
        """Postpone the alarm until ``stop``, and cancel one that was set while ``stop`` ran."""
        super().run()
        faulthandler.cancel_dump_traceback_later()

    def _postpone(self) -> None:
        faulthandler.dump_traceback_later(self._limit, exit=True)


def encoder_bytes(encoder: Encoder) -> int:
    """Bytes of all tensors of an encoder: weights, tables and static buffers. Shared memory counts once.

    They are found by the garbage collector's references, so that no encoder family has to list them.
    """
    storages: dict[int, int] = {}
    seen: set[int] = set()
    pending: list[Any] = [encoder]
    while pending:
        one = pending.pop()
        if id(one) in seen or isinstance(one, _NOT_OWNED):
            continue
        seen.add(id(one))
        if isinstance(one, Tensor):
            storage = one.untyped_storage()
            storages[storage.data_ptr()] = storage.nbytes()
        pending += gc.get_referents(one)
    return sum(storages.values())


def worker_bytes(device: str) -> int:
    """Bytes that this process uses on its device: weights, graphs, staging and the allocator's reserve.

    On CUDA these are the bytes that torch has reserved; on a CPU, the resident size of the process.
    """
    if torch.device(device).type == "cuda":
        return int(torch.cuda.memory_reserved(torch.device(device)))
    return int(psutil.Process().memory_info().rss)


def memory_counters(encoder_sizes: Mapping[str, int], device: str, staging: int) -> dict[str, float]:
    """A heartbeat's counters of memory, in bytes; ``staging`` is pinned host memory."""
    sizes = {counter_key(Count.ENCODER_MEMORY, name): float(size) for name, size in encoder_sizes.items()}
    worker = {Count.WORKER_MEMORY: worker_bytes(device), Count.STAGING_MEMORY: staging}
    return sizes | {counter_key(name): float(size) for name, size in worker.items()}


def graph_counters(figures: Mapping[str, GraphFigures]) -> dict[str, float]:
    """A heartbeat's counters of captured graphs, by encoder; empty if nothing is captured."""
    return {
        counter_key(name, encoder): float(value)
        for encoder, own in figures.items()
        for name, value in _values(own).items()
    }


def _values(own: GraphFigures) -> dict[Count, float]:
    return {
        Count.GRAPHS: own.graphs,
        Count.GRAPH_MEMORY: own.memory,
        Count.GRAPH_HITS: own.hits,
        Count.GRAPH_MISSES: own.misses,
        Count.GRAPH_DECLINED: own.declined,
        Count.GRAPH_UNITS: own.units,
        Count.GRAPH_PADDING: own.padding,
        Count.GRAPH_PADDING_SHARE: own.padding_share,
    }
