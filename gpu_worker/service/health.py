"""Telling the fleet which encoders there are, and telling it again when the store has forgotten."""

from __future__ import annotations

import faulthandler
import gc
import logging
import time
import types
from collections.abc import Iterable, Mapping
from typing import Any

import psutil
import torch
from torch import Tensor

from epd.contracts.embedding import EncoderCard
from epd.contracts.errors import StoreUnavailable
from epd.processes import PeriodicThread, log_failure
from epd.store.records import Cards
from epd.telemetry.counters import Count, counter_key
from gpu_worker.encoders.base import Encoder
from gpu_worker.engine.forward import GraphFigures

_log = logging.getLogger(__name__)

#: Seconds between two looks at whether the cards are still there.
_LOOK_PERIOD = 1.0
_PAUSE = 0.5


class Announcer:
    """Publishes the cards of one worker. ``restore_missing`` is for one thread."""

    def __init__(self, cards: Cards, own: Iterable[EncoderCard]) -> None:
        self._cards = cards
        self._own = tuple(own)
        self._looked_at = time.monotonic()

    def announce_all(self, patience: float) -> None:
        """Publish every card; tries again for ``patience`` seconds, then raises ``StoreUnavailable``."""
        end = time.monotonic() + patience
        while True:
            try:
                for card in self._own:
                    self._cards.announce(card)
                return
            except StoreUnavailable as error:
                if time.monotonic() + _PAUSE > end:
                    raise
                _log.warning("the cards wait for the store: %s", error)
            time.sleep(_PAUSE)

    def restore_missing(self) -> None:
        """Publish cards that are gone, as after a restart of a store without persistence.

        A card of that name by another worker stays: during an update the newest announcement holds.
        Raises ``StoreUnavailable``.
        """
        if time.monotonic() - self._looked_at < _LOOK_PERIOD:
            return
        self._looked_at = time.monotonic()
        found = self._cards.get([card.name for card in self._own])
        for card, known in zip(self._own, found, strict=True):
            if known is None:
                _log.warning("the card of %s was gone, and is announced anew", card.name)
                self._cards.announce(card)


_TURNS_PER_LIMIT = 8


class InterpreterAlarm(PeriodicThread):
    """Ends the process when no Python code ran for ``limit`` seconds. One a process."""

    def __init__(self, limit: float) -> None:
        period, failed = limit / _TURNS_PER_LIMIT, log_failure(_log, "putting off the interpreter alarm")
        super().__init__("interpreter-alarm", period, self._put_off, failed, wait_first=True)
        self._limit = limit

    def start(self) -> None:
        """Set the alarm, and put it off again and again."""
        self._put_off()
        super().start()

    def stop(self) -> None:
        """Cancel the alarm: what ends a process may take as long as it likes."""
        super().stop()
        faulthandler.cancel_dump_traceback_later()

    def run(self) -> None:
        """Put the alarm off until ``stop``, and cancel what was set while ``stop`` ran."""
        super().run()
        faulthandler.cancel_dump_traceback_later()

    def _put_off(self) -> None:
        faulthandler.dump_traceback_later(self._limit, exit=True)


#: What no encoder owns: code, and through its globals the rest of the process.
_NOT_OWNED = (type, types.ModuleType, types.FunctionType, types.BuiltinFunctionType, types.CodeType)


def encoder_bytes(encoder: Encoder) -> int:
    """Bytes of all tensors that an encoder holds: weights, tables, static buffers. Shared memory counts once.

    Found by the garbage collector's own references, so no family can forget one.
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
    """Bytes that this process has on its device: weights, graphs, staging and the allocator's reserve.

    On CUDA what torch has reserved there; on a CPU what is resident of the whole process.
    """
    if torch.device(device).type == "cuda":
        return int(torch.cuda.memory_reserved(torch.device(device)))
    return int(psutil.Process().memory_info().rss)


def memory_counters(encoder_sizes: Mapping[str, int], device: str, staging: int) -> dict[str, float]:
    """All as they stand in a heartbeat's counters; ``staging`` is bytes of pinned host memory."""
    sizes = {counter_key(Count.ENCODER_MEMORY, name): float(size) for name, size in encoder_sizes.items()}
    worker = {Count.WORKER_MEMORY: worker_bytes(device), Count.STAGING_MEMORY: staging}
    return sizes | {counter_key(name): float(size) for name, size in worker.items()}


def graph_counters(figures: Mapping[str, GraphFigures]) -> dict[str, float]:
    """Counters of every encoder; none where nothing is captured."""
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
