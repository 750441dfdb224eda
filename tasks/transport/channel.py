"""The consumer's half of the channel: wait at the bells, pop with one script, deliver to kombu.

kombu's names stay (``_brpop_start``, ``_brpop_read``): its poller calls them. What they wait on is a bell, a
token that holds no message, so a worker that dies while waiting loses nothing.
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

from tasks.transport import keys as broker_keys
from tasks.transport.acks import JsonMessage, TransportQoS, read_envelope
from tasks.transport.keys import ring
from tasks.transport.lanes import QueueChannel, lane_order
from tasks.transport.ledger import SUSPECT_COMPANY, Parcel, UnackedLedger
from tasks.transport.poison import PoisonHook
from tasks.transport.session import UnackedSession

logger = logging.getLogger(__name__)

#: A message that has to be alone waits so long for its worker to finish what it holds. A worker with a
#: task that never ends takes it in company after that: better at risk than never.
SOLITUDE_PATIENCE_S = 5.0

#: Most pops in one turn of the loop; acks go out between two turns.
BURSTS_A_TURN = 3

#: Timeouts of the ledger's own connections, in seconds. No command of it blocks.
LEDGER_TIMEOUTS = {"socket_timeout": 5.0, "socket_connect_timeout": 2.0}


class Channel(QueueChannel):
    """A channel that loses no message, however its process ends."""

    QoS = TransportQoS
    Message = JsonMessage

    _in_poll: Any = None

    #: Most messages of one pop; a small number shares a queue evenly between workers.
    burst = 16
    #: How often a message may be in a worker that dies before it is given up.
    max_deliveries = 3
    #: Called with each ``PoisonMessage``: a callable, or ``"package.module:name"``.
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
        self._alone_since: float | None = None

    def basic_consume(self, queue: str, no_ack: bool, *args: Any, **kwargs: Any) -> Any:
        """Consume ``queue``; the first one that acks starts the session of this channel."""
        if no_ack:
            self._no_ack_queues.add(queue)
        elif queue not in self._fanout_queues:
            self._no_ack_queues.discard(queue)
            self.session  # noqa: B018 (sign on before the first message)
        return super().basic_consume(queue, no_ack, *args, **kwargs)

    def basic_get(self, queue: str, no_ack: bool = False, **kwargs: Any) -> Any:
        """Get one message at once, or None."""
        if no_ack:
            return super().basic_get(queue, no_ack=True, **kwargs)
        for parcel, lane in self._pop([queue], limit=1):
            payload = self._payload(parcel, lane)
            if payload is not None:
                message = self.Message(payload, channel=self)
                self.qos.append(message, message.delivery_tag)
                return message
        return None

    def close(self) -> None:
        """Leave the bells without waiting for them, then settle the session."""
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
        params = {**self._connparams(), **LEDGER_TIMEOUTS}
        if issubclass(params["connection_class"], redis.UnixDomainSocketConnection):
            params.pop("socket_connect_timeout")
        client = redis.Redis(connection_pool=redis.ConnectionPool(**params))
        name = f"{socket.gethostname()}.{os.getpid()}"
        ledger = UnackedLedger(client, name=name, max_deliveries=int(self.max_deliveries))
        session = UnackedSession(ledger, poison_hook=symbol_by_name(self.poison_hook))
        session.start()
        self.qos.session = session
        self.qos.hub = getattr(self.connection.cycle, "hub", None)
        return session

    def _brpop_start(self, timeout: float | None = None) -> None:
        lanes = self._all_lanes()
        if not lanes:
            return
        connection = self.client.connection
        self._in_poll = connection
        self._brpop_sent_at = time.monotonic()
        wait_s = timeout or self.brpop_timeout
        connection.send_command("BRPOP", *[broker_keys.bell(lane) for lane in lanes], wait_s)

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
            self._hang_back(token)
            raise Empty
        # Also without a token: somebody may have pushed without ringing, or died with the token in hand.
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
        """Pop again while pops come back full: the bell would ring at once, and cost a turn of the loop."""
        delivered = 0
        for _ in range(BURSTS_A_TURN):
            popped = self._pop(queues, limit=self._credit())
            delivered += self._deliver_popped(popped)
            if len(popped) < int(self.burst):
                break
        return delivered

    def _deliver_popped(self, popped: list[tuple[Parcel, str]]) -> int:
        """Deliver in order. Where a callback raises, the rest goes back: nobody else knows of it."""
        waiting = list(popped)
        while waiting:
            parcel, lane = waiting.pop(0)
            try:
                self._deliver_one(parcel, lane)
            except BaseException:
                self.session.ledger.give_back([rest.receipt for rest, _ in waiting], crashed=False)
                raise
        return len(popped)

    def _deliver_one(self, parcel: Parcel, lane: str) -> None:
        queue = broker_keys.queue_of(lane)
        if queue not in self.connection._callbacks:
            self.session.ledger.give_back([parcel.receipt], crashed=False)
            return
        payload = self._payload(parcel, lane)
        if payload is not None:
            self.connection._deliver(payload, queue)

    def _deliver_unrecorded(self, queue: str) -> int:
        """Replies and the like: their consumers do not ack, so there is nothing to keep."""
        delivered = 0
        try:
            while delivered < self.burst:
                self.connection._deliver(self._get(queue), queue)
                delivered += 1
        except Empty:
            pass
        return delivered

    def _pop(self, queues: list[str], *, limit: int) -> list[tuple[Parcel, str]]:
        """Pop up to ``limit`` messages of ``queues`` into the unacked hash; pairs (message, its lane)."""
        order = lane_order(queues, self.priority_steps, turn=self._turn)
        lanes = [str(self._q_for_pri(queue, step)) for queue, step in order]
        suspects = self.qos.suspects()
        if limit < 1 or any(count >= self.max_deliveries - 1 for count in suspects):
            self.session.ledger.wait_for_room(lanes[0])
            return []
        self._turn += 1
        company = max(0, SUSPECT_COMPANY - len(suspects))
        haul = self.session.ledger.pop(lanes, limit=limit, company=company, take_solo=self._may_take_solo())
        self._alone_since = (self._alone_since or time.monotonic()) if haul.solitude else None
        return [(parcel, lanes[parcel.lane]) for parcel in haul.parcels]

    def _may_take_solo(self) -> bool:
        if self.qos.held() == 0:
            return True
        return self._alone_since is not None and time.monotonic() - self._alone_since > SOLITUDE_PATIENCE_S

    def _payload(self, parcel: Parcel, lane: str) -> dict[str, Any] | None:
        """What kombu knows as a message; None, and dropped, when it is no message at all."""
        try:
            payload = read_envelope(parcel.raw)
            payload["headers"][broker_keys.DELIVERIES] = parcel.deliveries
            properties = payload["properties"]
            properties["delivery_tag"] = str(parcel.receipt)
            properties["delivery_info"]["redelivered"] = bool(parcel.redelivered)
        except (ValueError, KeyError, TypeError):
            logger.exception("dropped something on %r that is not a message: %.200r", lane, parcel.raw)
            self.session.ledger.ack(parcel.receipt)
            return None
        return dict(payload)

    def _credit(self) -> int:
        free = self.qos.can_consume_max_estimate()
        return int(self.burst) if free is None else min(int(self.burst), free)

    def _all_lanes(self) -> list[str]:
        by_step = zip(*map(self.lanes_of, self.active_queues), strict=True)
        return [lane for lanes in by_step for lane in lanes]

    def _hang_back(self, token: Any) -> None:
        """Give a bell's token back that this channel took but has no use for."""
        if not token:
            return
        lane = bytes(token[0]).decode().removeprefix(broker_keys.BELL_PREFIX)
        with self.conn_or_acquire() as client, client.pipeline(transaction=False) as pipe:
            ring(pipe, lane)
            pipe.execute()
