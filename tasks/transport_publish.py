"""Publishing in one pipeline, with the bells of all lanes it touched rung at its end."""

from __future__ import annotations

from typing import Any

from kombu.transport import redis as kombu_redis

from tasks.broker_scripts import ring


class RingingBatch(kombu_redis.PublishBatch):
    """kombu's publish batch that also wakes the consumers."""

    def __init__(self, channel: Any, max_size: int) -> None:
        super().__init__(channel, max_size)
        self._lanes: set[str] = set()

    def touch(self, lane: str) -> None:
        """Note that the batch puts something on ``lane``."""
        self._lanes.add(lane)

    def flush(self) -> None:
        """Send what is buffered. The lanes are kept: a flush may come before the message that touched one."""
        if self._buffered:
            for lane in self._lanes:
                ring(self.pipeline, lane)
        super().flush()
