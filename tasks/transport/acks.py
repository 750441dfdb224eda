"""kombu's view of taken messages: acks are noted at once and sent once a tick; JSON bodies decode fast."""

from __future__ import annotations

import logging
import time
from typing import Any

import orjson
import redis
from kombu.transport import virtual
from kombu.utils.json import loads

from tasks.transport import keys
from tasks.transport.session import UnackedSession

logger = logging.getLogger(__name__)

#: A running hub ticks at least once a second. After this many seconds without a tick, acks are sent directly.
HUB_STALLED_S = 2.0

_JSON = "application/json"

#: The member with which kombu marks types that JSON lacks, as UUIDs and times. Only kombu's reader knows it.
_MARK = b'"__type__"'


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
        self._quarantined: dict[str, int] = {}
        self._less_urgent: set[str] = set()

    def append(self, message: Any, delivery_tag: str) -> None:
        """Note a delivered message."""
        deliveries = int((message.headers or {}).get(keys.DELIVERIES, 0))
        if deliveries:
            self._quarantined[delivery_tag] = deliveries
        if (message.properties or {}).get("priority"):
            self._less_urgent.add(delivery_tag)
        super().append(message, delivery_tag)

    def ack(self, delivery_tag: str) -> None:
        """Note that a message is done. Can be called from any thread."""
        self._forget(delivery_tag)
        if self.session is not None and self.session.ledger.ack(int(delivery_tag)):
            self._flush_soon()

    def reject(self, delivery_tag: str, requeue: bool = False) -> None:
        """Drop a message, or give it back to the head of its lane.

        Giving it back counts as a delivery: Celery does it when a child of a prefork pool died with the task.
        """
        if not requeue:
            self.ack(delivery_tag)
            return
        self._forget(delivery_tag)
        if self.session is not None:
            self.session.ledger.give_back([int(delivery_tag)], crashed=True)

    def flush(self) -> None:
        """Send all noted acks to the server. The event loop calls it once a tick."""
        self.last_tick = time.monotonic()
        if self.session is not None:
            self.session.ledger.flush()

    def held(self) -> int:
        """How many messages this channel holds."""
        return len(self._delivered) - len(self._dirty)

    def quarantined(self) -> list[int]:
        """Delivery counts of the quarantined messages that this channel holds (see ``ledger``)."""
        return list(self._quarantined.values())

    def less_urgent(self) -> int:
        """How many messages this channel holds that are not of the most urgent priority, step 0."""
        return len(self._less_urgent)

    def restore_unacked(self) -> None:
        """Give back all messages that this channel holds."""
        self._flush()
        receipts = [int(tag) for tag in self._delivered]
        self._delivered.clear()
        self._quarantined.clear()
        self._less_urgent.clear()
        if self.session is not None:
            self.session.ledger.flush()
            self.session.ledger.give_back(receipts, crashed=False)

    def restore_unacked_once(self, stderr: Any = None) -> None:
        """End the channel by settling its session. Late acks still reach the server and do no harm."""
        self._on_collect.cancel()
        if self.session is not None:
            self.session.retire()
        self._delivered.clear()
        self._quarantined.clear()
        self._less_urgent.clear()

    def restore_visible(self, *args: Any, **kwargs: Any) -> None:
        """Do nothing: reclaimers give back what dead workers held, and no message becomes visible by age."""

    def _forget(self, delivery_tag: str) -> None:
        self._quarantined.pop(delivery_tag, None)
        self._less_urgent.discard(delivery_tag)
        super().ack(delivery_tag)

    def _flush_soon(self) -> None:
        if self.hub is None or time.monotonic() - self.last_tick > HUB_STALLED_S:
            self._flush_now()
        else:
            self.hub.call_soon(self._flush_now)

    def _flush_now(self) -> None:
        """Flush where nobody would see an error: the acks stay noted, and the next tick raises it."""
        try:
            if self.session is not None:
                self.session.ledger.flush()
        except redis.RedisError as error:
            logger.warning("acks wait for the broker: %s", error)


class JsonMessage(virtual.Message):
    """A message whose body is decoded by orjson where it is plain JSON."""

    def _decode(self) -> Any:
        if self.content_type == _JSON and _JSON in (self.accept or (_JSON,)):
            body = self.body.encode() if isinstance(self.body, str) else self.body
            if isinstance(body, bytes) and _MARK not in body:
                try:
                    return orjson.loads(body)
                except orjson.JSONDecodeError:
                    pass  # perhaps NaN, which Python reads; otherwise kombu reports what is wrong
        return super()._decode()


def read_envelope(raw: bytes) -> Any:
    """Parse one entry of a queue's list into kombu's envelope; raises ``ValueError``."""
    return loads(raw.decode()) if _MARK in raw else orjson.loads(raw)
