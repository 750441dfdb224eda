"""The Transport class that kombu loads: its Redis transport, changed so that no message is lost.

Stock kombu takes a message with BRPOP and records it as unacked afterwards; a worker killed in between
loses it. Here waiting takes only a bell's token, one script takes a message and records it, and each
worker's unacked messages are kept apart, so that any other worker can give them back once it is dead.

* Broker URLs stay ordinary: ``register`` serves ``redis://``, ``rediss://`` and ``redis+socket://``.
* Keys are in ``tasks.transport.keys``, scripts in ``tasks/transport/lua``.
* Our transport options ``burst``, ``max_deliveries`` and ``poison_hook`` are attributes of ``Channel``.
* A message that was in a worker when it died returns with ``epd_deliveries`` > 0 in its headers.
"""

from __future__ import annotations

from typing import Any

from kombu import transport as kombu_transport
from kombu.transport import redis as kombu_redis
from redis.exceptions import ResponseError

from tasks.transport.channel import Channel

SCHEMES = ("redis", "rediss")

#: Seconds after the end of a wait until a connection without an answer counts as dead; kombu's default is 25.
HEALTH_CHECK_S = 3


class Poller(kombu_redis.MultiChannelPoller):
    """kombu's poller, which also sends the acks of the last tick before it waits again."""

    #: The event loop, once the worker has one.
    hub: Any = None

    def on_poll_start(self) -> None:
        """Called once a tick, and before each synchronous wait."""
        for channel in list(self._channels):
            channel.qos.hub = self.hub
            channel.qos.flush()
        super().on_poll_start()


class Transport(kombu_redis.Transport):
    """Redis transport without a moment in which a message can be lost."""

    Channel = Channel

    #: Seconds that an idle worker waits at its bells; then it also sees messages pushed without a ring.
    brpop_timeout = 0.5

    #: ``ResponseError``: the server refuses commands, as does a primary that became a replica, or one without
    #: memory, disk or replicas. The worker does not end; it reconnects until a server accepts them.
    connection_errors = (*kombu_redis.Transport.connection_errors, ResponseError)

    def __init__(self, client: Any, **kwargs: Any) -> None:
        client.transport_options.setdefault("health_check_interval", HEALTH_CHECK_S)
        super().__init__(client, **kwargs)
        self.cycle = Poller()

    def register_with_event_loop(self, connection: Any, loop: Any) -> None:
        """Called by Celery when it consumes with an event loop."""
        self.cycle.hub = loop
        super().register_with_event_loop(connection, loop)


def register() -> None:
    """Serve the ordinary Redis schemes with ``Transport`` in this process. Can be called more than once."""
    path = f"{Transport.__module__}:{Transport.__name__}"
    for scheme in SCHEMES:
        kombu_transport.TRANSPORT_ALIASES[scheme] = path
        kombu_transport._transport_cache.pop(scheme, None)
