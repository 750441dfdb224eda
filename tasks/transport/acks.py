"""Acks for kombu: noted at once, told to the server once a tick of the event loop."""

from __future__ import annotations

import logging
import time
from typing import Any

import orjson
import redis
from kombu.transport import virtual
from kombu.utils.json import loads

from tasks.transport import keys as broker_keys
from tasks.transport.session import UnackedSession

logger = logging.getLogger(__name__)

#: A hub turns at least once a second; one that did not for so long is not running, so acks go out directly.
HUB_STALLED_S = 2.0


class TransportQoS(virtual.QoS):
    """kombu's quality-of-service object over an ``UnackedSession``.

    The pop script has recorded a message as unacked before kombu sees it, so ``append`` is local. Delivery
    tags are receipts. A channel that acks nothing (a producer, a reply queue) never gets a session.
    """

    session: UnackedSession | None = None
    hub: Any = None
    last_tick = float("-inf")

    def __init__(self, channel: Any, prefetch_count: int = 0) -> None:
        super().__init__(channel, prefetch_count)
        self._suspects: dict[str, int] = {}

    def append(self, message: Any, delivery_tag: str) -> None:
        """Note a delivered message."""
        deliveries = int((message.headers or {}).get(broker_keys.DELIVERIES, 0))
        if deliveries:
            self._suspects[delivery_tag] = deliveries
        super().append(message, delivery_tag)

    def ack(self, delivery_tag: str) -> None:
        """Done with a message, from any thread."""
        self._forget(delivery_tag)
        if self.session is not None and self.session.ledger.ack(int(delivery_tag)):
            self._flush_soon()

    def reject(self, delivery_tag: str, requeue: bool = False) -> None:
        """Drop a message, or hand it back to the head of its lane.

        Handing back counts as a delivery: Celery does it when a child of a prefork pool died with the task.
        """
        if not requeue:
            self.ack(delivery_tag)
            return
        self._forget(delivery_tag)
        if self.session is not None:
            self.session.ledger.give_back([int(delivery_tag)], crashed=True)

    def flush(self) -> None:
        """Tell the server all noted acks; the event loop calls it once a tick."""
        self.last_tick = time.monotonic()
        if self.session is not None:
            self.session.ledger.flush()

    def held(self) -> int:
        """How many messages this channel has in hand."""
        return len(self._delivered) - len(self._dirty)

    def suspects(self) -> list[int]:
        """Delivery counts of the messages in hand that were in a worker when it died."""
        return list(self._suspects.values())

    def restore_unacked(self) -> None:
        """Hand back all that is in hand."""
        self._flush()
        receipts = [int(tag) for tag in self._delivered]
        self._delivered.clear()
        self._suspects.clear()
        if self.session is not None:
            self.session.ledger.flush()
            self.session.ledger.give_back(receipts, crashed=False)

    def restore_unacked_once(self, stderr: Any = None) -> None:
        """End of the channel: settle the session. Late acks still reach the server, and do no harm."""
        self._on_collect.cancel()
        if self.session is not None:
            self.session.retire()
        self._delivered.clear()
        self._suspects.clear()

    def restore_visible(self, *args: Any, **kwargs: Any) -> None:
        """Nothing: the wardens see to what the dead left, and no message becomes visible by age."""

    def _forget(self, delivery_tag: str) -> None:
        self._suspects.pop(delivery_tag, None)
        super().ack(delivery_tag)

    def _flush_soon(self) -> None:
        if self.hub is None or time.monotonic() - self.last_tick > HUB_STALLED_S:
            self._flush_now()
        else:
            self.hub.call_soon(self._flush_now)

    def _flush_now(self) -> None:
        """Flush where a failure has nobody to tell: the acks stay noted, and the next tick raises."""
        try:
            if self.session is not None:
                self.session.ledger.flush()
        except redis.RedisError as error:
            logger.warning("acks wait for the broker: %s", error)


_JSON = "application/json"

#: kombu marks types that JSON has not, as UUIDs and times, with this member. Only its own reader knows them.
_MARK = b'"__type__"'


class JsonMessage(virtual.Message):
    """A message whose body is decoded quickly where it is plain JSON."""

    def _decode(self) -> Any:
        if self.content_type == _JSON and _JSON in (self.accept or (_JSON,)):
            body = self.body.encode() if isinstance(self.body, str) else self.body
            if isinstance(body, bytes) and _MARK not in body:
                try:
                    return orjson.loads(body)
                except orjson.JSONDecodeError:
                    pass  # perhaps NaN, which Python reads; else kombu says what is wrong
        return super()._decode()


def read_envelope(raw: bytes) -> Any:
    """What lies in a queue's list, as kombu knows it."""
    return loads(raw.decode()) if _MARK in raw else orjson.loads(raw)
