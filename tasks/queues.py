"""The queues, their priority steps, and which worker consumes which queue.

``encode`` is for the batching pool of ``gpu_worker``. An ordinary worker that is started without ``-Q`` does
not consume it, and one that is started to consume it exits instead of failing every item.
"""

from __future__ import annotations

from typing import Any

from celery.signals import celeryd_after_setup, celeryd_init

from epd.contracts.job import Priority

FETCH = "fetch"
DECODE = "decode"
ENCODE = "encode"

#: All queues, in pipeline order.
QUEUES = (FETCH, DECODE, ENCODE)

#: The step of each priority. Kombu's Redis transport serves lower numbers first, and keeps a list for each.
PRIORITY_STEPS = {Priority.INTERACTIVE: 0, Priority.BULK: 5}


def connect_queue_rules() -> None:
    """Apply both rules to every worker of this process."""
    celeryd_init.connect(leave_encode_out_of_the_default, dispatch_uid="epd.queues.default")
    celeryd_after_setup.connect(refuse_encode_in_ordinary_pools, dispatch_uid="epd.queues.refuse")


def leave_encode_out_of_the_default(instance: Any, **_: Any) -> None:
    """Remove ``encode`` from what a worker without ``-Q`` consumes. Runs before ``-Q`` is applied."""
    instance.app.amqp.queues.deselect([ENCODE])


def refuse_encode_in_ordinary_pools(instance: Any, **_: Any) -> None:
    """Stop a worker that would consume ``encode`` without the batching pool.

    Raises:
        SystemExit: the worker has another pool. Celery logs any other exception of a signal handler and
            continues.
    """
    if ENCODE in instance.app.amqp.queues.consume_from and not _is_batching(instance.pool_cls):
        raise SystemExit("queue 'encode' needs the batching pool: start it with `python -m gpu_worker`")


def consumed_kinds(app: Any) -> tuple[str, ...]:
    """Which of our queues this process consumes, in pipeline order."""
    consumed = app.amqp.queues.consume_from
    return tuple(name for name in QUEUES if name in consumed)


def _is_batching(pool_cls: Any) -> bool:
    return str(getattr(pool_cls, "__module__", pool_cls)).startswith("gpu_worker")
