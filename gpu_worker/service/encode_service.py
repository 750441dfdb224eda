"""The encode service of one worker: its encoders, engine, dispatcher, leases and heartbeat.

Messages come from a deliverer, which is Celery's pool or a test.
"""

from __future__ import annotations

import logging
import os
import socket
import threading
import time
from collections.abc import Mapping

from epd.store.values import Heartbeat
from epd.telemetry.heartbeat import HeartbeatThread
from gpu_worker.encoders.base import Encoder
from gpu_worker.engine.batcher import Budget
from gpu_worker.engine.cuda_streams import open_device
from gpu_worker.engine.engine import Engine
from gpu_worker.engine.graphs.cuda_graph import GraphBackend
from gpu_worker.service.dispatcher import Deliverer, Dispatcher
from gpu_worker.service.health import (
    CardAnnouncer,
    InterpreterAlarm,
    encoder_bytes,
    graph_counters,
    memory_counters,
)
from gpu_worker.service.loading import (
    choose_runner,
    load_encoders,
    planned_devices,
    require_graphs,
    shared_device,
)
from gpu_worker.service.results import ResultWriter, StoreRetry
from gpu_worker.service.segment_cache import SegmentCache
from gpu_worker.service.tickets import Admission, LeaseKeeper
from gpu_worker.service.torch_threads import choose_threads
from tasks.flow.context import Context

_log = logging.getLogger(__name__)

_KIND = "encode"

#: Seconds that a start waits for the store: all processes of a stack start at once.
_STORE_WAIT = 60.0


class EncodeService:
    """Call ``warm_up``, ``attach`` and ``set_ready`` in this order; end it with ``stop`` or ``abandon``."""

    def __init__(
        self,
        *,
        context: Context,
        encoders: Mapping[str, Encoder],
        name: str,
        backend: GraphBackend | None = None,
    ) -> None:
        """Set up the parts; nothing runs yet.

        Args:
            context: config, settings, clock and store.
            encoders: the loaded encoders, by name.
            name: the worker's name in its heartbeat.
            backend: captures forwards instead of the device's own backend; tests pass one for the CPU.
        """
        cards = {key: encoder.card for key, encoder in encoders.items()}
        settings = context.settings
        self._context = context
        self._cards = cards
        self._device = shared_device(encoders)
        self._encoder_sizes = {key: encoder_bytes(encoder) for key, encoder in encoders.items()}
        self._announcer = CardAnnouncer(context.store.cards, cards.values())
        self._name = name
        self._ready = threading.Event()
        self._retry = StoreRetry(context.clock)
        writer = ResultWriter(context, cards, self._retry)
        segments = SegmentCache(context.store, encoders, cards) if settings.segment_cache else None
        self.dispatcher = Dispatcher(
            context=context, admission=Admission(context, cards), writer=writer, segments=segments
        )
        self.engine = Engine(
            encoders,
            budget=Budget(max_items=settings.max_batch_items, max_cost=settings.max_batch_cost),
            device=open_device(self._device, settings.staging_bytes),
            observer=self.dispatcher,
            runner=choose_runner(settings, self._device, backend),
            batch_timeout=settings.batch_timeout,
            clock=context.clock,
        )
        self._alarm = InterpreterAlarm(settings.batch_timeout)
        self._leases = LeaseKeeper(context.store.flights, self.dispatcher.ledger, settings.flight_lease)
        self._heartbeat = HeartbeatThread(context.store.heartbeats, self.heartbeat, settings.heartbeat_period)

    def warm_up(self) -> None:
        """Warm up all encoders, then announce their cards: from then on other processes build keys with them.

        Raises:
            EncodeFailed: an encoder does not run.
            SettingsError: a required graph could not be captured.
            StoreUnavailable: the cards could not be announced because the store was down for too long.
        """
        started = time.perf_counter()
        self.engine.start()
        _log.info("%d encoders are warm after %.1f s", len(self._cards), time.perf_counter() - started)
        for name, size in self._encoder_sizes.items():
            _log.info("encoder %s holds %.1f MiB", name, size / 2**20)
        self._announcer.announce_all(_STORE_WAIT)
        self._heartbeat.start()

    def attach(self, deliverer: Deliverer) -> None:
        """Take messages from this deliverer from now on."""
        self.dispatcher.open(self.engine, deliverer)
        self._alarm.start()
        self._leases.start()

    def set_ready(self) -> None:
        """Report this worker as ready in its heartbeat: the deliverer is connected."""
        self._ready.set()

    def heartbeat(self) -> Heartbeat:
        """The current heartbeat. Making one also restores cards that the store has lost."""
        self._announcer.restore_missing()
        return Heartbeat(
            name=self._name,
            kind=_KIND,
            host=socket.gethostname(),
            pid=os.getpid(),
            at=self._context.clock(),
            ready=self._ready.is_set(),
            encoders=tuple(self._cards),
            counters=self.engine.counters.snapshot() | self._gauges(),
        )

    def _gauges(self) -> dict[str, float]:
        """Figures that are measured now rather than counted."""
        memory = memory_counters(self._encoder_sizes, self._device, self.engine.staging_bytes())
        return memory | graph_counters(self.engine.graph_figures())

    def info(self) -> dict[str, float | list[str]]:
        """Figures for ``celery inspect stats``."""
        figures: dict[str, float | list[str]] = dict(self.engine.counters.snapshot() | self._gauges())
        return figures | {
            "held": len(self.dispatcher.ledger),
            "queued": self.engine.queued,
            "encoders": [*self._cards],
        }

    def stop(self, timeout: float) -> None:
        """Finish the running batch and write its results; the other messages stay unacked, for other workers.

        ``timeout`` is in seconds.
        """
        end = time.monotonic() + timeout
        self._retry.stop()
        self._ready.clear()
        self.dispatcher.close(timeout)
        left = self.engine.stop(max(0.0, end - time.monotonic()))
        _log.info("stopped; %d items are given back", len(left))
        self._leases.stop()
        self._heartbeat.stop()
        self._alarm.stop()

    def final_heartbeat(self, timeout: float) -> None:
        """Send the last counters before the process ends; wait for at most ``timeout`` seconds."""
        self._ready.clear()
        thread = threading.Thread(
            target=lambda: self._context.store.heartbeats.beat(self.heartbeat()), daemon=True
        )
        thread.start()
        thread.join(timeout)

    def abandon(self) -> None:
        """Stop at once; a running batch is left behind with its thread."""
        self.stop(timeout=0.0)


def open_service(context: Context, *, name: str, device: str | None = None, share: int = 1) -> EncodeService:
    """Load the config's encoders, warm them up and announce them.

    Args:
        context: config, settings, clock and store.
        name: the worker's name in its heartbeat.
        device: a torch device name, or None for the config's.
        share: how many processes divide the CPU cores.

    Raises:
        SettingsError: an encoder cannot be loaded, or graphs are required but a device has none; it is named.
        EncodeFailed, StoreUnavailable: as ``EncodeService.warm_up``.
    """
    require_graphs(context.settings, planned_devices(context.config, device))
    encoders = load_encoders(context.config, device)
    choose_threads(context.settings.torch_threads, encoders, share)
    service = EncodeService(context=context, encoders=encoders, name=name)
    service.warm_up()
    return service
