"""Publishes tasks of ``transport_app`` to a broker, through a producer of our transport."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from celery import Celery
from kombu import Exchange, Queue

from tasks.transport.kombu import register
from tests.integration.transport_kit import Broker

WORK = "transport_app.work"
KILL = "transport_app.kill_worker"


def producer_app(broker: Broker) -> Celery:
    """An application that only publishes and asks."""
    register()
    app = Celery("producer", broker=broker.url, set_as_current=False)
    app.conf.task_queues = [Queue(name, Exchange(name), routing_key=name) for name in ("one", "two")]
    app.conf.broker_transport_options = {"priority_steps": [0, 9]}
    return app


def publish(
    broker: Broker,
    names: Iterable[str],
    *,
    task: str = WORK,
    lane: Callable[[str], tuple[str, int]] = lambda _: ("one", 0),
    seconds: float = 0.0,
) -> None:
    """Publish one message a name, in order; ``lane`` gives each one's queue and priority."""
    with producer_app(broker) as app, app.connection_for_write() as connection:
        producer = app.amqp.Producer(connection)
        for name in names:
            queue, priority = lane(name)
            args = (name, seconds) if task == WORK else (name,)
            app.send_task(
                task, args, queue=queue, priority=priority, producer=producer, ignore_result=True, retry=False
            )
