"""How long a child of the prefork pool may take to end when its worker stops."""

from __future__ import annotations

import billiard.pool

#: Looks, 0.1 s apart, that an ending child takes for its last result to be read. Billiard's own is 300:
#: at a stop Celery forgets the job that a child was just handed, reads no more of that child and joins it, so
#: the child waits 30 s for nothing. The message was given back by then; its result is not missed.
EXIT_LOOKS = 20


def bound_child_exit() -> None:
    """Let children that are forked from now on wait at most 2 s; billiard has no setting for it."""
    billiard.pool.GUARANTEE_MESSAGE_CONSUMPTION_RETRY_LIMIT = EXIT_LOOKS
