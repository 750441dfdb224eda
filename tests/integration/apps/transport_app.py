"""A tiny Celery application on our transport; every run of a task leaves a line in a Redis list."""

from __future__ import annotations

import os
import signal
import time

import redis
from celery import Celery, Task
from kombu import Exchange, Queue
from redis.backoff import ConstantBackoff
from redis.retry import Retry

from tasks.transport.kombu import register
from tasks.transport.poison import PoisonMessage

register()
BROKER = os.environ["TRANSPORT_TEST_URL"]
RUNS = "test:runs"
POISONED = "test:poisoned"
QUEUES = ("one", "two")

app = Celery("transport_app", broker=BROKER)
app.conf.update(
    task_acks_late=True,
    task_reject_on_worker_lost=True,
    task_ignore_result=True,
    task_default_queue="one",
    task_queues=[Queue(q, Exchange(q), routing_key=q) for q in QUEUES],
    worker_prefetch_multiplier=int(os.environ.get("TRANSPORT_TEST_PREFETCH", "4")),
    worker_cancel_long_running_tasks_on_connection_loss=False,
    broker_connection_retry_on_startup=True,
    broker_connection_retry=True,
    broker_transport_options={
        "poison_hook": "transport_app:note_poison",
        "max_deliveries": int(os.environ.get("TRANSPORT_TEST_DELIVERIES", "3")),
        "priority_steps": [0, 9],
    },
)
#: Connections are cut in some tests; the task itself has to outlive that, or it fails and is acked.
client = redis.Redis.from_url(
    BROKER, socket_timeout=5, retry=Retry(ConstantBackoff(0.05), 40), retry_on_error=[redis.ConnectionError]
)


def note_poison(message: PoisonMessage) -> None:
    """The poison hook: leaves the first argument in a list."""
    client.rpush(POISONED, message.arguments()[0][0])


@app.task(bind=True)
def work(self: Task, name: str, seconds: float = 0.0) -> None:
    """Leave ``name`` and the delivery count, after a pause."""
    time.sleep(seconds)
    client.rpush(RUNS, f"{name} {self.request.get('epd_deliveries')}")


@app.task
def kill_worker(name: str) -> None:
    """End the whole worker as the kernel's OOM killer would; in a prefork pool only the child."""
    client.rpush(RUNS, f"{name} dies")
    os.kill(os.getpid(), signal.SIGKILL)
