"""What a CPU worker does besides its tasks: send heartbeats and, where it fetches, reap and move files.

All of it runs in threads of the main process that start when the worker is ready and stop when it shuts down.
Celery imports this module in every worker (``imports``); in the GPU worker and in Flower it does nothing.
"""

from __future__ import annotations

import logging
import os
import socket
import threading
from collections.abc import Callable
from functools import partial
from typing import Any

from celery.signals import worker_init, worker_ready, worker_shutdown

from epd.contracts.errors import SettingsError
from epd.processes import PeriodicThread
from epd.store.values import Heartbeat
from epd.telemetry.heartbeat import HeartbeatThread
from tasks.flow.context import Context
from tasks.process import TOTALS, process_context
from tasks.queues import DECODE, FETCH, consumed_kinds
from tasks.worker.background import MoverThread, ReaperThread, process_reaper
from tasks.worker.media import open_work, process_work
from tasks.worker.prefetch import PrefetchThread
from tasks.worker.shutdown import stop_cold_between_ticks

logger = logging.getLogger(__name__)

_running: list[PeriodicThread] = []


def cpu_kinds(app: Any) -> list[str]:
    """Which of ``fetch`` and ``decode`` this worker consumes."""
    return [kind for kind in consumed_kinds(app) if kind in {FETCH, DECODE}]


@worker_init.connect
def load_work(sender: Any, **_: Any) -> None:
    """Import the work and start the children before the first message.

    Raises:
        SystemExit: a setting or the config file is wrong. After any other exception of a signal handler
            Celery continues, and the worker would fail every item.
    """
    kinds = cpu_kinds(sender.app)
    try:
        if kinds:
            open_work(decodes=DECODE in kinds)
    except SettingsError as error:
        raise SystemExit(f"epd: {error}") from error
    if kinds:
        import tasks.flow.fetch  # noqa: F401


@worker_ready.connect
def start(sender: Any, **_: Any) -> None:
    """Start heartbeats, the check for dead children and, in a fetch worker, the reaper and the mover.

    Args:
        sender: Celery's consumer of this worker.
    """
    kinds = cpu_kinds(sender.app)
    context = process_context() if kinds else None
    for index, kind in enumerate(kinds):
        assert context is not None
        _run(_heartbeat_thread(context, sender.hostname, kind, first=index == 0))
    if kinds and sender.hub is not None and threading.current_thread() is threading.main_thread():
        stop_cold_between_ticks(sender)
    if kinds:
        _run(PrefetchThread(sender, process_work(), fetches=FETCH in kinds))
    if context is not None and FETCH in kinds:
        _run(ReaperThread(process_reaper(context), context))
        if context.settings.l2_dir is not None:
            _run(MoverThread(context.store.embeddings))


@worker_shutdown.connect
def stop(**_: Any) -> None:
    """Stop the threads once the last task is done; ``worker_shutting_down`` would run in a signal handler."""
    while _running:
        _running.pop().stop()


def beat(name: str, kind: str, clock: Callable[[], float], *, counts: bool) -> Heartbeat:
    """This process's heartbeat for one queue.

    Args:
        name: the worker's name, unique in the fleet.
        kind: the queue.
        clock: Unix seconds.
        counts: whether this heartbeat carries the counters; one of a process does.
    """
    return Heartbeat(
        name=name,
        kind=kind,
        host=socket.gethostname(),
        pid=os.getpid(),
        at=clock(),
        counters=TOTALS.snapshot() if counts else {},
    )


def _heartbeat_thread(context: Context, hostname: str, kind: str, *, first: bool) -> HeartbeatThread:
    name = hostname if first else f"{hostname}/{kind}"
    make = partial(beat, name, kind, context.clock, counts=first)
    return HeartbeatThread(context.store.heartbeats, make, context.settings.heartbeat_period)


def _run(thread: PeriodicThread) -> None:
    thread.start()
    _running.append(thread)
