"""A stock Celery application: kombu's own Redis transport, a task that does nothing, events as Flower wants.

Started as ``celery -A bench.ceiling.stock_app worker -P threads``. It acks late, as our workers do: a task
may then be run twice but not lost by a restart, which is the promise that both sides are measured under.
"""

from __future__ import annotations

from typing import Any

from celery import Celery

from epd.settings import settings

TASK = "stock.noop"
QUEUE = "stock"

app = Celery("stock", broker=settings().broker_url)
app.conf.update(
    task_default_queue=QUEUE,
    task_acks_late=True,
    task_ignore_result=True,
    worker_send_task_events=True,
    task_track_started=True,
    worker_prefetch_multiplier=32,
    broker_connection_retry_on_startup=True,
)


@app.task(name=TASK)
def noop(document: dict[str, Any]) -> None:
    """Take the document that our task takes, and do nothing."""
