"""SIGQUIT in a CPU worker: ended between two turns of its loop, not inside the signal handler.

Celery's handler joins the pool where the signal happens to come: within an ack of a child (whose lock the
join then waits for), between the two writes of a job (whose child then waits for the rest), or within the
hand-over to a thread (the executor's lock). Such a worker stays for ever, and since its threads still beat,
nobody takes what it holds.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import threading
import time
from typing import Any

import billiard.pool
import psutil
from celery.apps.worker import on_cold_shutdown
from celery.concurrency.prefork import TaskPool
from celery.worker import state

logger = logging.getLogger(__name__)

#: The status of Celery's cold shutdown.
COLD_STOP = 1

#: Seconds after which the process ends whatever it is at: its messages are given back by others.
LIMIT_S = 8.0


def stop_cold_between_turns(consumer: Any, limit: float = LIMIT_S) -> None:
    """Take SIGQUIT over from Celery. For the main thread, once the worker is ready and its hub turns."""
    asked = threading.Event()

    def look() -> None:
        if asked.is_set():
            consumer.hub.on_tick.discard(look)
            _end(consumer)

    consumer.hub.on_tick.add(look)
    threading.Thread(target=_backstop, args=(asked, limit), name="cold-stop", daemon=True).start()

    def ask(*_: Any) -> None:
        signal.signal(signal.SIGQUIT, signal.SIG_IGN)  # a second one would meet the event's lock
        asked.set()

    signal.signal(signal.SIGQUIT, ask)


def _end(consumer: Any) -> None:
    """Celery's own way where there are children to end; the loop's next turn ends the worker."""
    try:
        if isinstance(consumer.pool, TaskPool):
            on_cold_shutdown(consumer.controller)
    except Exception:
        logger.exception("the pool did not end in good order")
    finally:
        state.should_terminate = COLD_STOP


def _backstop(asked: threading.Event, limit: float) -> None:
    asked.wait()
    time.sleep(limit)
    children = []
    with contextlib.suppress(psutil.Error):
        children = psutil.Process().children(recursive=True)
    for child in children:
        with contextlib.suppress(psutil.Error):
            child.kill()
    os._exit(COLD_STOP)


#: Looks, 0.1 s apart, that an ending child takes for its last result to be read. Billiard's own is 300:
#: at a stop Celery forgets the job that a child was just handed, reads no more of that child and joins it, so
#: the child waits 30 s for nothing. The message was given back by then; its result is not missed.
EXIT_LOOKS = 20


def bound_child_exit() -> None:
    """Let children that are forked from now on wait at most 2 s; billiard has no setting for it."""
    billiard.pool.GUARANTEE_MESSAGE_CONSUMPTION_RETRY_LIMIT = EXIT_LOOKS
