"""Which worker consumes which queue.

``encode`` belongs to the batching pool of ``gpu_worker``. An ordinary worker started without ``-Q`` leaves
it alone, and one that is told to consume it refuses to start instead of failing every item.
"""

from __future__ import annotations

from typing import Any

from celery.signals import celeryd_after_setup, celeryd_init

from epd.contracts.job import Priority

FETCH = "fetch"
DECODE = "decode"
ENCODE = "encode"

#: All of them, in pipeline order.
QUEUES = (FETCH, DECODE, ENCODE)

#: The step of each priority. Kombu's Redis serves the lower number first; every step is a list of its own.
PRIORITY_STEPS = {Priority.INTERACTIVE: 0, Priority.BULK: 5}


def connect_queue_rules() -> None:
    """Have the two rules applied in every worker of this process."""
    celeryd_init.connect(leave_encode_out_of_the_default, dispatch_uid="epd.queues.default")
    celeryd_after_setup.connect(refuse_encode_in_ordinary_pools, dispatch_uid="epd.queues.refuse")


def leave_encode_out_of_the_default(instance: Any, **_: Any) -> None:
    """Take ``encode`` out of what a worker without ``-Q`` consumes; runs before ``-Q`` is applied."""
    instance.app.amqp.queues.deselect([ENCODE])


def refuse_encode_in_ordinary_pools(instance: Any, **_: Any) -> None:
    """End the start of a worker that would consume ``encode`` without the batching pool.

    Raises:
        SystemExit: Celery logs any other exception of a signal handler and goes on.
    """
    if ENCODE in instance.app.amqp.queues.consume_from and not _is_batching(instance.pool_cls):
        raise SystemExit("queue 'encode' needs the batching pool: start it with `python -m gpu_worker`")


def consumed_kinds(app: Any) -> tuple[str, ...]:
    """The queues of ours that this process consumes, in pipeline order."""
    consumed = app.amqp.queues.consume_from
    return tuple(name for name in QUEUES if name in consumed)


def _is_batching(pool_cls: Any) -> bool:
    return str(getattr(pool_cls, "__module__", pool_cls)).startswith("gpu_worker")
