"""The producer's half of the channel: put, count, purge and delete lanes and their side lists.

``lane_order`` is the order in which the consumer's half takes from them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kombu.transport import redis as kombu_redis
from kombu.utils.json import dumps

from tasks.transport import keys
from tasks.transport.keys import raise_for_first, ring

#: One pop in this many takes the least urgent step first, so bulk gets at least 1/8 under any load.
BULK_EVERY = 8


class RingingBatch(kombu_redis.PublishBatch):
    """kombu's publish batch that also wakes the consumers."""

    def __init__(self, channel: Any, max_size: int) -> None:
        super().__init__(channel, max_size)
        self._lanes: set[str] = set()

    def touch(self, lane: str) -> None:
        """Note that the batch puts a message on ``lane``."""
        self._lanes.add(lane)

    def flush(self) -> None:
        """Send what is buffered. The lanes are kept: a flush may come before the message that touched one."""
        if self._buffered:
            for lane in self._lanes:
                ring(self.pipeline, lane)
        super().flush()


class QueueChannel(kombu_redis.Channel):
    """kombu's Redis channel whose queues have bells, and side lists for messages given back."""

    def lanes_of(self, queue: str) -> list[str]:
        """The lists of one queue, most urgent first."""
        return [str(self._q_for_pri(queue, step)) for step in self.priority_steps]

    def create_publish_batch(self, max_size: int) -> RingingBatch:
        """A batch for ``Producer.batch()``."""
        return RingingBatch(self, max_size)

    def _put(self, queue: str, message: Any, **kwargs: Any) -> None:
        lane = str(self._q_for_pri(queue, self._get_message_priority(message, reverse=False)))
        batch = kwargs.get("_publish_batch")
        if batch is not None:
            batch.touch(lane)
            super()._put(queue, message, **kwargs)
            return
        with self.conn_or_acquire() as client, client.pipeline(transaction=False) as pipe:
            pipe.lpush(lane, dumps(message))
            for expiring in self.lanes_of(queue) if queue in self._expires else ():
                pipe.pexpire(expiring, self._expires[queue])
            ring(pipe, lane)
            raise_for_first(pipe.execute(raise_on_error=False))

    def _size(self, queue: str) -> int:
        with self.conn_or_acquire() as client, client.pipeline(transaction=False) as pipe:
            for key in self._message_lists(queue):
                pipe.llen(key)
            return sum(pipe.execute())

    def _purge(self, queue: str) -> int:
        with self.conn_or_acquire() as client, client.pipeline() as pipe:
            for key in self._message_lists(queue):
                pipe.llen(key)
                pipe.delete(key)
            return sum(pipe.execute()[::2])

    def _delete(self, queue: str, *args: Any, **kwargs: Any) -> None:
        super()._delete(queue, *args, **kwargs)
        lanes = self.lanes_of(queue)
        side_keys = [key for lane in lanes for key in (*keys.side_lists(lane), keys.bell(lane))]
        with self.conn_or_acquire(client=kwargs.get("client")) as client:
            client.delete(*side_keys)

    def _message_lists(self, queue: str) -> list[str]:
        return [key for lane in self.lanes_of(queue) for key in (lane, *keys.side_lists(lane))]


def lane_order(
    queues: Sequence[str], steps: Sequence[int], *, turn: int, bulk_every: int = BULK_EVERY
) -> list[tuple[str, int]]:
    """Pairs (queue, priority step) in the order in which a pop takes from them.

    Queues take turns within a step. Step 0 is the most urgent, as in kombu's Redis transport.

    Args:
        queues: the queues that are consumed.
        steps: the priority steps, in any order.
        turn: the number of the pop, from 0.
        bulk_every: one pop in this many starts with the least urgent step.
    """
    if not queues:
        return []
    first = turn % len(queues)
    rotated = [*queues[first:], *queues[:first]]
    bulk_first = len(steps) > 1 and turn % bulk_every == bulk_every - 1
    walked = sorted(steps, reverse=bulk_first)
    return [(queue, step) for step in walked for queue in rotated]
