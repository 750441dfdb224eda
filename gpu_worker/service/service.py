"""The encode service: encoders, engine, desk, leases and heartbeat of one worker, without its deliverer."""

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
from gpu_worker.service.admission import Admission
from gpu_worker.service.dispatcher import Desk, Host
from gpu_worker.service.health import (
    Announcer,
    InterpreterAlarm,
    encoder_bytes,
    graph_counters,
    memory_counters,
)
from gpu_worker.service.loading import choose_runner, device_of, load_fleet, planned_devices, require_graphs
from gpu_worker.service.results import Patience, Reply
from gpu_worker.service.segment_cache import SegmentCache
from gpu_worker.service.tickets import LeaseKeeper
from gpu_worker.service.torch_threads import settle_threads
from tasks.flow.context import Context

_log = logging.getLogger(__name__)

_KIND = "encode"

#: Seconds that a start waits for the store: all processes of a stack start at once.
_STORE_WAIT = 60.0


class EncodeService:
    """Made in order: ``warm_up``, ``attach``, ``set_ready``; ended by ``stop`` or ``abandon``."""

    def __init__(
        self,
        *,
        context: Context,
        encoders: Mapping[str, Encoder],
        name: str,
        backend: GraphBackend | None = None,
    ) -> None:
        """Take loaded encoders. ``name`` is the worker's, as it stands in its heartbeat.

        ``backend`` captures forwards in the place of the device's own; tests pass the CPU twin.
        """
        cards = {key: encoder.card for key, encoder in encoders.items()}
        settings = context.settings
        self._context = context
        self._cards = cards
        self._device = device_of(encoders)
        self._encoder_sizes = {key: encoder_bytes(encoder) for key, encoder in encoders.items()}
        self._announcer = Announcer(context.store.cards, cards.values())
        self._name = name
        self._ready = threading.Event()
        self._patience = Patience(context.clock)
        reply = Reply(context, cards, self._patience)
        segments = SegmentCache(context.store, encoders, cards) if settings.segment_cache else None
        self.desk = Desk(context=context, admission=Admission(context, cards), reply=reply, segments=segments)
        self.engine = Engine(
            encoders,
            budget=Budget(max_items=settings.max_batch_items, max_cost=settings.max_batch_cost),
            device=open_device(self._device, settings.staging_bytes),
            observer=self.desk,
            runner=choose_runner(settings, self._device, backend),
            batch_timeout=settings.batch_timeout,
            clock=context.clock,
        )
        self._alarm = InterpreterAlarm(settings.batch_timeout)
        self._leases = LeaseKeeper(context.store.flights, self.desk.ledger, settings.flight_lease)
        self._heartbeat = HeartbeatThread(context.store.heartbeats, self.heartbeat, settings.heartbeat_period)

    def warm_up(self) -> None:
        """Warm every encoder up, then announce its card: from then on others build keys with it.

        Raises:
            EncodeFailed: an encoder does not run.
            SettingsError: a graph that is required could not be captured.
            StoreUnavailable: the cards could not be announced, the store being away for too long.
        """
        started = time.perf_counter()
        self.engine.start()
        _log.info("%d encoders are warm after %.1f s", len(self._cards), time.perf_counter() - started)
        for name, size in self._encoder_sizes.items():
            _log.info("encoder %s holds %.1f MiB", name, size / 2**20)
        self._announcer.announce_all(_STORE_WAIT)
        self._heartbeat.start()

    def attach(self, host: Host) -> None:
        """Take messages from this host from now on."""
        self.desk.open(self.engine, host)
        self._alarm.start()
        self._leases.start()

    def set_ready(self) -> None:
        """The deliverer is connected: the heartbeat says ready."""
        self._ready.set()

    def heartbeat(self) -> Heartbeat:
        """This worker's sign of life; every so often it also looks after its cards."""
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
        """What is measured when it is asked for."""
        memory = memory_counters(self._encoder_sizes, self._device, self.engine.staging_bytes())
        return memory | graph_counters(self.engine.graph_figures())

    def info(self) -> dict[str, float | list[str]]:
        """Figures for ``inspect stats``."""
        figures: dict[str, float | list[str]] = dict(self.engine.counters.snapshot() | self._gauges())
        return figures | {
            "held": len(self.desk.ledger),
            "queued": self.engine.queued,
            "encoders": [*self._cards],
        }

    def stop(self, timeout: float) -> None:
        """Finish the running batch and its replies; all else stays unacked, for another worker."""
        end = time.monotonic() + timeout
        self._patience.end()
        self._ready.clear()
        self.desk.close(timeout)
        left = self.engine.stop(max(0.0, end - time.monotonic()))
        _log.info("stopped; %d items are given back", len(left))
        self._leases.stop()
        self._heartbeat.stop()
        self._alarm.stop()

    def last_words(self, patience: float) -> None:
        """One more heartbeat, with the counters, before the process ends itself; waits so many seconds."""
        self._ready.clear()
        farewell = threading.Thread(
            target=lambda: self._context.store.heartbeats.beat(self.heartbeat()), daemon=True
        )
        farewell.start()
        farewell.join(patience)

    def abandon(self) -> None:
        """Stop at once; what runs is left behind with its thread."""
        self.stop(timeout=0.0)


def open_service(context: Context, *, name: str, device: str | None = None, share: int = 1) -> EncodeService:
    """Load what the config names, and warm it up; ``share`` processes divide the CPU cores.

    Raises:
        SettingsError: an encoder of the config cannot be loaded, or graphs are required and missing; it is
            named.
        EncodeFailed, StoreUnavailable: as ``EncodeService.warm_up``.
    """
    require_graphs(context.settings, planned_devices(context.config, device))
    encoders = load_fleet(context.config, device)
    settle_threads(context.settings.torch_threads, encoders, share)
    service = EncodeService(context=context, encoders=encoders, name=name)
    service.warm_up()
    return service
