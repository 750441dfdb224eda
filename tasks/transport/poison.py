"""Messages that killed their workers too often, and the hook that handles them instead of another run."""

from __future__ import annotations

import base64
import json
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import redis
from redis.exceptions import LockError

from tasks.transport import keys

logger = logging.getLogger(__name__)

#: Most messages handled in one call, so that the reclaimer returns to its watch.
MOST_AT_ONCE = 16


@dataclass(frozen=True, kw_only=True)
class PoisonMessage:
    """One message that will not be run again. ``raw`` is kombu's JSON envelope."""

    queue: str
    deliveries: int
    raw: bytes

    @property
    def headers(self) -> dict[str, Any]:
        """Celery's message headers (``task``, ``id``, ...); empty when the envelope cannot be read."""
        headers = self._envelope().get("headers")
        return headers if isinstance(headers, dict) else {}

    @property
    def task(self) -> str:
        """Name of the task, or ``?``."""
        return str(self.headers.get("task", "?"))

    @property
    def task_id(self) -> str:
        """Celery's id of the task, or ``?``."""
        return str(self.headers.get("id", "?"))

    def arguments(self) -> tuple[list[Any], dict[str, Any]]:
        """Positional and keyword arguments of the task.

        Raises:
            ValueError: the message is not one of Celery's protocol 2 with a JSON body.
        """
        match self._envelope():
            case {"body": str() as body, "properties": {"body_encoding": "base64"}}:
                text: str | bytes = base64.b64decode(body)
            case {"body": str() as text}:
                pass
            case _:
                raise ValueError("not an envelope of kombu")
        match json.loads(text):
            case [list() as args, dict() as kwargs, *_]:
                return args, kwargs
        raise ValueError("not the body of a Celery message of protocol 2")

    def _envelope(self) -> dict[str, Any]:
        try:
            envelope = json.loads(self.raw)
        except ValueError:
            return {}
        return envelope if isinstance(envelope, dict) else {}


PoisonHook = Callable[[PoisonMessage], None]


def log_poison(message: PoisonMessage) -> None:
    """The default hook: logs the message that was given up."""
    logger.error(
        "gave up %s[%s] of queue %s after %s deliveries to workers that died",
        message.task, message.task_id, message.queue, message.deliveries,
    )  # fmt: skip


def parse_poison(frame: bytes) -> PoisonMessage:
    """Parse an entry of the poison list: delivery count, lane and raw message, one line each."""
    deliveries, lane, raw = frame.split(b"\n", 2)
    return PoisonMessage(queue=keys.queue_of(lane.decode()), deliveries=int(deliveries), raw=raw)


def drain_poison(client: redis.Redis, hook: PoisonHook) -> bool:
    """Call ``hook`` with each waiting poison message; False when it failed for one of them.

    A message leaves the list only after the hook has returned, so the hook may see it twice and must be
    idempotent. A message for which the hook raises goes to the end of the list and is tried later.
    """
    if not client.exists(keys.POISON):
        return True
    lock = client.lock(keys.POISON_LOCK, timeout=keys.POISON_LOCK_TTL_S, blocking=False)
    if not lock.acquire():
        return True
    try:
        outcomes = [_hand_over(client, hook, frame) for frame in _oldest(client)]
        return all(outcomes)
    finally:
        try:
            lock.release()
        except LockError:
            logger.warning("the poison hook took longer than %s s", keys.POISON_LOCK_TTL_S)


def _oldest(client: redis.Redis) -> list[bytes]:
    frames: Any = client.lrange(keys.POISON, 0, MOST_AT_ONCE - 1)
    return list(frames)


def _hand_over(client: redis.Redis, hook: PoisonHook, frame: bytes) -> bool:
    try:
        hook(parse_poison(frame))
    except Exception:
        logger.exception("the poison hook failed; the message is kept")
        with client.pipeline(transaction=True) as pipe:
            pipe.lrem(keys.POISON, 1, frame)  # type: ignore[arg-type]
            pipe.rpush(keys.POISON, frame)
            pipe.execute()
        return False
    client.lrem(keys.POISON, 1, frame)  # type: ignore[arg-type]
    return True
