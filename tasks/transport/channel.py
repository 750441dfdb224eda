"""The consumer's half of the channel: wait at the bells, pop with one script, deliver to kombu.

``_brpop_start`` and ``_brpop_read`` keep kombu's names, since its poller calls them. They wait for a bell, a
list with a token that carries no message, so a worker that dies while it waits loses nothing.
"""

from __future__ import annotations

import logging
import os
import socket
import time
from queue import Empty
from typing import Any

import redis
from kombu.utils.imports import symbol_by_name
from kombu.utils.objects import cached_property

from tasks.transport import keys
from tasks.transport.acks import JsonMessage, TransportQoS, read_envelope
from tasks.transport.keys import ring
from tasks.transport.lanes import QueueChannel, lane_order
from tasks.transport.ledger import QUARANTINE_LIMIT, PoppedMessage, UnackedLedger
from tasks.transport.poison import PoisonHook
from tasks.transport.session import UnackedSession

logger = logging.getLogger(__name__)

#: Seconds for which a message that must be alone waits for its worker to finish all others. After that the
#: worker takes it next to them, since one of them may never end: a run at risk is better than none.
SOLO_WAIT_SECONDS = 5.0

#: Messages for which a worker that is full of less urgent ones keeps room, but at most a quarter of its
#: prefetch. So an urgent message never waits for a less urgent one to end.
URGENT_ROOM = 16

#: Most pops in one tick of the event loop; acks are sent between two ticks.
POPS_PER_TICK = 3

#: Timeouts of the connections of ledgers and publishers, in seconds. None of their commands blocks.
CLIENT_TIMEOUTS = {"socket_timeout": 5.0, "socket_connect_timeout": 2.0}


class Channel(QueueChannel):
    """A channel that loses no message, however its process ends."""

    QoS = TransportQoS
    Message = JsonMessage

    _in_poll: Any = None

    #: Most messages of one pop; a small number divides a queue evenly between workers.
    burst = 16
    #: A message that was in this many dying workers is given up.
    max_deliveries = 3
    #: Called with each ``PoisonMessage``: a callable, or its path as ``"package.module:name"``.
    poison_hook: PoisonHook | str = "tasks.transport.poison:log_poison"

    socket_timeout = 5.0
    socket_connect_timeout = 3.0
    socket_keepalive = True

    from_transport_options = (
        *QueueChannel.from_transport_options, "burst", "max_deliveries", "poison_hook",
    )  # fmt: skip

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if self.global_keyprefix:
            raise ValueError("global_keyprefix is not supported; use a database of its own for each fleet")
        self._no_ack_queues: set[str] = set()
        self._turn = 0
        self._solo_waiting_since: float | None = None

    def basic_consume(self, queue: str, no_ack: bool, *args: Any, **kwargs: Any) -> Any:
        """Consume ``queue``. The first queue with acks starts the session of this channel."""
        if no_ack:
            self._no_ack_queues.add(queue)
        elif queue not in self._fanout_queues:
            self._no_ack_queues.discard(queue)
            self.session  # noqa: B018 (register before the first message)
        return super().basic_consume(queue, no_ack, *args, **kwargs)

    def basic_get(self, queue: str, no_ack: bool = False, **kwargs: Any) -> Any:
        """Get one message without waiting, or None."""
        if no_ack:
            return super().basic_get(queue, no_ack=True, **kwargs)
        for popped, lane in self._pop([queue], limit=1):
            payload = self._payload(popped, lane)
            if payload is not None:
                message = self.Message(payload, channel=self)
                self.qos.append(message, message.delivery_tag)
                return message
        return None

    def close(self) -> None:
        """Stop waiting at the bells, then settle the session."""
        if self._in_poll:
            self._in_poll.disconnect()
            self._in_poll = None
        try:
            super().close()
        finally:
            if "session" in self.__dict__:
                self.session.retire()

    @cached_property
    def session(self) -> UnackedSession:
        """The session of this channel, started on first use."""
        name = f"{socket.gethostname()}.{os.getpid()}"
        ledger = UnackedLedger(self.own_client(), name=name, max_deliveries=int(self.max_deliveries))
        session = UnackedSession(ledger, poison_hook=symbol_by_name(self.poison_hook))
        session.start()
        self.qos.session = session
        self.qos.hub = getattr(self.connection.cycle, "hub", None)
        return session

    def own_client(self) -> redis.Redis:
        """A client with short time limits, on connections of its own that outlive this channel."""
        params = {**self._connparams(), **CLIENT_TIMEOUTS}
        if issubclass(params["connection_class"], redis.UnixDomainSocketConnection):
            params.pop("socket_connect_timeout")
        return redis.Redis(connection_pool=redis.ConnectionPool(**params))

    def _brpop_start(self, timeout: float | None = None) -> None:
        lanes = self._all_lanes()
        if not lanes:
            return
        connection = self.client.connection
        self._in_poll = connection
        self._brpop_sent_at = time.monotonic()
        wait_s = timeout or self.brpop_timeout
        connection.send_command("BRPOP", *[keys.bell(lane) for lane in lanes], wait_s)

    def _brpop_read(self, **options: Any) -> bool:
        connection = self.client.connection
        try:
            token = self.client.parse_response(connection, "BRPOP", **options)
        except self.connection_errors:
            connection.disconnect()
            raise
        finally:
            self._in_poll = None
            self._flush_brpop_reauth()
        queues = self.active_queues
        if not queues:
            self._return_token(token)
            raise Empty
        # Also without a token: a process may have pushed without ringing, or died after it took the token.
        if not self._deliver_ready(queues):
            raise Empty
        return True

    def _deliver_ready(self, queues: list[str]) -> int:
        acked = [queue for queue in queues if queue not in self._no_ack_queues]
        delivered = self._deliver_bursts(acked) if acked else 0
        for queue in queues:
            if queue in self._no_ack_queues:
                delivered += self._deliver_unrecorded(queue)
        return delivered

    def _deliver_bursts(self, queues: list[str]) -> int:
        """Pop again while pops are full: another wait would end at once, and cost a tick of the loop."""
        delivered = 0
        for _ in range(POPS_PER_TICK):
            popped = self._pop(queues, limit=self._pop_limit())
            delivered += self._deliver_popped(popped)
            if len(popped) < int(self.burst):
                break
        return delivered

    def _deliver_popped(self, popped: list[tuple[PoppedMessage, str]]) -> int:
        """Deliver in order. When a callback raises, the rest is given back: no one else would handle it."""
        waiting = list(popped)
        while waiting:
            message, lane = waiting.pop(0)
            try:
                self._deliver_one(message, lane)
            except BaseException:
                self.session.ledger.give_back([rest.receipt for rest, _ in waiting], crashed=False)
                raise
        return len(popped)

    def _deliver_one(self, popped: PoppedMessage, lane: str) -> None:
        queue = keys.queue_of(lane)
        if queue not in self.connection._callbacks:
            self.session.ledger.give_back([popped.receipt], crashed=False)
            return
        payload = self._payload(popped, lane)
        if payload is not None:
            self.connection._deliver(payload, queue)

    def _deliver_unrecorded(self, queue: str) -> int:
        """Deliver replies and the like. Their consumers do not ack, so nothing is recorded."""
        delivered = 0
        try:
            while delivered < self.burst:
                self.connection._deliver(self._get(queue), queue)
                delivered += 1
        except Empty:
            pass
        return delivered

    def _pop(self, queues: list[str], *, limit: int) -> list[tuple[PoppedMessage, str]]:
        """Pop up to ``limit`` messages of ``queues`` into the unacked hash; returns pairs (message, lane)."""
        order = lane_order(queues, self.priority_steps, turn=self._turn)
        left = [pair for pair in order if pair[1] > 0] if self._is_full_of_less_urgent() else []
        order = [pair for pair in order if pair not in left]
        lanes = [str(self._q_for_pri(queue, step)) for queue, step in order]
        quarantined = self.qos.quarantined()
        if limit < 1 or any(count >= self.max_deliveries - 1 for count in quarantined):
            self.session.ledger.ring_after_ack(lanes[0])
            return []
        self._turn += 1
        result = self.session.ledger.pop(
            lanes,
            limit=limit,
            quarantine_room=max(0, QUARANTINE_LIMIT - len(quarantined)),
            take_solo=self._may_take_solo(),
        )
        if left:
            self.session.ledger.ring_after_ack(str(self._q_for_pri(*left[0])))
        since = self._solo_waiting_since or time.monotonic()
        self._solo_waiting_since = since if result.solo_waiting else None
        return [(message, lanes[message.lane]) for message in result.messages]

    def _is_full_of_less_urgent(self) -> bool:
        prefetch: int = self.qos.prefetch_count
        room = min(URGENT_ROOM, prefetch // 4)
        return bool(room) and self.qos.less_urgent() >= prefetch - room

    def _may_take_solo(self) -> bool:
        if self.qos.held() == 0:
            return True
        since = self._solo_waiting_since
        return since is not None and time.monotonic() - since > SOLO_WAIT_SECONDS

    def _payload(self, popped: PoppedMessage, lane: str) -> dict[str, Any] | None:
        """The envelope for kombu. What is not a message at all is dropped, and the answer is None."""
        try:
            payload = read_envelope(popped.raw)
            payload["headers"][keys.DELIVERIES] = popped.deliveries
            properties = payload["properties"]
            properties["delivery_tag"] = str(popped.receipt)
            properties["delivery_info"]["redelivered"] = bool(popped.redelivered)
        except (ValueError, KeyError, TypeError):
            logger.exception("dropped something on %r that is not a message: %.200r", lane, popped.raw)
            self.session.ledger.ack(popped.receipt)
            return None
        return dict(payload)

    def _pop_limit(self) -> int:
        free = self.qos.can_consume_max_estimate()
        return int(self.burst) if free is None else min(int(self.burst), free)

    def _all_lanes(self) -> list[str]:
        by_step = zip(*map(self.lanes_of, self.active_queues), strict=True)
        return [lane for lanes in by_step for lane in lanes]

    def _return_token(self, token: Any) -> None:
        """Put a token that this channel took but cannot use back to its bell."""
        if not token:
            return
        lane = bytes(token[0]).decode().removeprefix(keys.BELL_PREFIX)
        with self.conn_or_acquire() as client, client.pipeline(transaction=False) as pipe:
            ring(pipe, lane)
            pipe.execute()
