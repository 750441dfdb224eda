"""How a CPU worker stops: on SIGQUIT between two ticks of its loop, and with children that end soon.

Celery's own handler of SIGQUIT joins the pool wherever the signal interrupts the main thread: while a child's
ack is read (the join then waits for that lock), between the two writes of a job (the child then waits for the
second), or while a job is submitted to a thread (the executor's lock). Such a worker never ends, and because
its heartbeat continues, no other worker takes over what it holds.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import threading
import time
from typing import Any

import psutil
from celery.worker import state

logger = logging.getLogger(__name__)

#: The status of Celery's cold shutdown.
COLD_STOP = 1

#: Seconds after which the process ends whatever it is doing; other workers then give its messages back.
LIMIT_S = 8.0


def stop_cold_between_ticks(consumer: Any, limit: float = LIMIT_S) -> None:
    """Take SIGQUIT over from Celery.

    Called in the main thread, once the worker is ready and its event loop runs.

    Args:
        consumer: Celery's consumer of this worker.
        limit: seconds until the process is ended by force.
    """
    asked = threading.Event()

    def stop_if_asked() -> None:
        if asked.is_set():
            consumer.hub.on_tick.discard(stop_if_asked)
            _end(consumer)

    consumer.hub.on_tick.add(stop_if_asked)
    threading.Thread(target=_backstop, args=(asked, limit), name="cold-stop", daemon=True).start()

    def ask(*_: Any) -> None:
        signal.signal(signal.SIGQUIT, signal.SIG_IGN)  # a second signal could wait for the lock of the event
        asked.set()

    signal.signal(signal.SIGQUIT, ask)


def _end(consumer: Any) -> None:
    """Ack nothing more. The next tick of the loop ends the worker."""
    try:
        consumer.pool.terminate()
    except Exception:
        logger.exception("the pool did not stop cleanly")
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
