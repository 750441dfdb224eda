"""The Celery transport that loses nothing: kombu's Redis transport with another way to take messages.

Stock kombu takes a message with BRPOP and writes it down as unacked afterwards; a worker killed in between
loses it. Here waiting takes nothing (a bell's token), taking and writing down are one script, and every
worker's unacked messages are its own, so that any other can hand them back when it is dead.

* broker URLs stay ordinary; ``register`` puts this class under ``redis://``, ``rediss://``, ``redis+socket://``
* keys: ``tasks.transport.keys``; scripts: ``tasks/lua``
* transport options of ours: ``burst``, ``max_deliveries``, ``poison_hook`` (see ``tasks.transport.channel``)
* a message that was in a dying worker comes again with ``epd_deliveries`` > 0 in its headers
"""

from __future__ import annotations

from typing import Any

from kombu import transport as kombu_transport
from kombu.transport import redis as kombu_redis
from redis.exceptions import ResponseError

from tasks.transport.channel import Channel

SCHEMES = ("redis", "rediss")

#: A wait that got no answer for so long after its own end is a dead connection, in seconds; kombu's is 25.
HEALTH_CHECK_S = 3


class Poller(kombu_redis.MultiChannelPoller):
    """kombu's poller that tells the acks of the last tick before it waits again."""

    #: The event loop, once the worker has one.
    hub: Any = None

    def on_poll_start(self) -> None:
        """Called once a tick, and before each synchronous wait."""
        for channel in list(self._channels):
            channel.qos.hub = self.hub
            channel.qos.flush()
        super().on_poll_start()


class Transport(kombu_redis.Transport):
    """Redis transport without a window in which a message can be lost."""

    Channel = Channel

    #: How long an idle worker waits at its bells, in seconds. A push without a ring is seen so late at most.
    brpop_timeout = 0.5

    #: A server that refuses commands: a primary that became a replica, or one without room, disk or replicas.
    #: Connect anew, to reach the one that took over or until it takes commands again; else the worker ends.
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
    """Serve the ordinary Redis schemes with ``Transport`` in this process; may be called again."""
    path = f"{Transport.__module__}:{Transport.__name__}"
    for scheme in SCHEMES:
        kombu_transport.TRANSPORT_ALIASES[scheme] = path
        kombu_transport._transport_cache.pop(scheme, None)
