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


#: The pool of workers that fetch and decode, and the module of the one that encodes.
MEDIA_POOL = "tasks.worker.pool:MediaPool"
_ENCODE_POOLS = "gpu_worker"


def connect_queue_rules() -> None:
    """Apply these rules to every worker of this process."""
    celeryd_init.connect(leave_encode_out_of_the_default, dispatch_uid="epd.queues.default")
    celeryd_after_setup.connect(refuse_other_pools, dispatch_uid="epd.queues.refuse")


def leave_encode_out_of_the_default(instance: Any, **_: Any) -> None:
    """Remove ``encode`` from what a worker without ``-Q`` consumes. Runs before ``-Q`` is applied."""
    instance.app.amqp.queues.deselect([ENCODE])


def refuse_other_pools(instance: Any, **_: Any) -> None:
    """Stop a worker whose pool is not the one of its queues.

    Raises:
        SystemExit: the worker has another pool. Celery logs any other exception of a signal handler and
            continues.
    """
    kinds, pool = consumed_kinds(instance.app), instance.pool_cls
    module = str(getattr(pool, "__module__", pool))
    if ENCODE in kinds and not module.startswith(_ENCODE_POOLS):
        raise SystemExit("queue 'encode' needs the batching pool: start it with `python -m gpu_worker`")
    if set(kinds) & {FETCH, DECODE} and module != MEDIA_POOL.partition(":")[0]:
        raise SystemExit("queues 'fetch' and 'decode' need epd's own pool: start the worker without -P")


def consumed_kinds(app: Any) -> tuple[str, ...]:
    """Which of our queues this process consumes, in pipeline order."""
    consumed = app.amqp.queues.consume_from
    return tuple(name for name in QUEUES if name in consumed)
