"""Listens to every change of a part on the store's channels, to see a second end and the time of each."""

from __future__ import annotations

import threading
import time
from collections import Counter

import redis

from epd.contracts.job import FINAL_STATES, Notice
from epd.store import keys

#: A part of a job, in text: (job id, part id).
Part = tuple[str, str]

_PAUSE = 0.1


class NoticeWatch:
    """Counts the final notices of each part on each channel.

    What is published while nobody is connected is not seen; so the job's own counters are checked besides.
    """

    def __init__(self, url: str) -> None:
        self._url = url
        self.ended_at: dict[Part, float] = {}
        self.heard_at: dict[Part, float] = {}
        self._ends: Counter[tuple[str, Part]] = Counter()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._listen, daemon=True)

    def start(self) -> None:
        """Start to listen."""
        self._thread.start()

    def close(self) -> None:
        """Stop to listen."""
        self._stopping.set()
        self._thread.join(5)

    def ended_twice(self) -> list[Part]:
        """Parts whose end was announced more than once on one channel."""
        return sorted({part for (_, part), count in list(self._ends.items()) if count > 1})

    def _listen(self) -> None:
        client = redis.Redis.from_url(self._url, decode_responses=True, socket_connect_timeout=1)
        while not self._stopping.is_set():
            try:
                with client.pubsub(ignore_subscribe_messages=True) as subscription:
                    subscription.psubscribe(f"{keys.EVENTS_PREFIX}*")
                    while not self._stopping.is_set():
                        self._note(subscription.get_message(timeout=_PAUSE))
            except redis.RedisError:
                self._stopping.wait(_PAUSE)
        client.close()

    def _note(self, message: dict[str, str] | None) -> None:
        if message is None:
            return
        notice = Notice.model_validate_json(message["data"])
        part = (notice.job_id, notice.part)
        self.heard_at[part] = time.monotonic()
        if notice.state in FINAL_STATES:
            self.ended_at.setdefault(part, time.monotonic())
            self._ends[message["channel"], part] += 1
