"""One bounded connection to Redis or Valkey (feature floor Redis 7.0, not in cluster mode).

The server's ``maxmemory-policy`` has to be ``noeviction`` or one of ``volatile-*``: what holds the byte bound
of the embedding cache has no TTL and must not be evicted behind our back.

Every call ends: connects, reads and the wait for a free connection have time limits, and retries are few.
This is the only place where exceptions of redis-py become ``StoreUnavailable``.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import redis
from pydantic import ValidationError
from redis.backoff import NoBackoff
from redis.client import PubSub
from redis.exceptions import ConnectionError as ConnectionLost
from redis.exceptions import NoScriptError, RedisError, ResponseError
from redis.retry import Retry

from epd.contracts.errors import SettingsError, StoreUnavailable
from epd.contracts.wire import Wire
from epd.store.scripts import Script, load_scripts

logger = logging.getLogger(__name__)

#: More than the threads of one process ever need; the wait for a free one is bounded too.
_MAX_CONNECTIONS = 64
#: Seconds before each further try. redis-py nests its own retries (connect within command), so that a server
#: that hangs would hold a caller for nine time limits; here one limit bounds all tries together.
_PAUSES = (0.02, 0.1)
_HEALTH_CHECK_SECONDS = 15

Answer = TypeVar("Answer")
Argument = str | int | float
Command = tuple[Argument, ...]


@contextmanager
def answering() -> Iterator[None]:
    """Turn any failure of the server or of the way to it into ``StoreUnavailable``."""
    try:
        yield
    except (RedisError, OSError) as error:
        logger.warning("store: %s: %s", type(error).__name__, error)
        raise StoreUnavailable(_complaint(error)) from error


def _complaint(error: Exception) -> str:
    """What is wrong, without the server's own words: they may hold keys and addresses."""
    if isinstance(error, ResponseError):
        # Servers begin with a code: OOM, MISCONF (its disk is full), NOREPLICAS, READONLY ...
        code = error.status_code or str(error).partition(" ")[0]
        return f"the store refuses ({code if code.isupper() and len(code) <= 20 else 'error'})"
    return f"the store does not answer: {type(error).__name__}"


def _pool(url: str, timeout: float) -> redis.BlockingConnectionPool:
    try:
        return redis.BlockingConnectionPool.from_url(
            url,
            max_connections=_MAX_CONNECTIONS,
            timeout=timeout,
            socket_timeout=timeout,
            socket_connect_timeout=timeout,
            health_check_interval=_HEALTH_CHECK_SECONDS,
            decode_responses=True,
            retry=Retry(NoBackoff(), 0),
        )
    except ValueError as error:
        # The URL itself may hold a password, so it is not repeated.
        raise SettingsError(f"EPD_STORE_URL: {error}") from error


class Connection:
    """A thread-safe client: single commands, pipelines in one round trip, and the scripts of ``lua/``."""

    def __init__(self, url: str, *, timeout: float) -> None:
        """Connect lazily; ``timeout`` is seconds for each connect and each read.

        Raises:
            SettingsError: the URL is not one of a Redis server.
        """
        self._client = redis.Redis.from_pool(_pool(url, timeout))
        self._scripts = load_scripts()
        self._timeout = timeout

    def call(self, *command: Argument) -> Any:
        """One command and its answer."""
        with answering():
            return self._retried(lambda: self._client.execute_command(*command))

    def pipe(self, commands: Sequence[Command]) -> list[Any]:
        """Several commands in one round trip; the answers in their order."""
        with answering():
            answers = self._retried(lambda: self._send(commands))
            missing = [index for index, answer in enumerate(answers) if isinstance(answer, NoScriptError)]
            if missing:
                self._register_scripts()
                again = self._retried(lambda: self._send([commands[index] for index in missing]))
                for index, answer in zip(missing, again, strict=True):
                    answers[index] = answer
            for answer in answers:
                if isinstance(answer, Exception):
                    raise answer
            return answers

    def run(self, script: Script, keys: Sequence[str], args: Sequence[Argument]) -> Any:
        """One script and its answer; atomic on the server."""
        return self.pipe([self.script_command(script, keys, args)])[0]

    def script_command(self, script: Script, keys: Sequence[str], args: Sequence[Argument]) -> Command:
        """The command that runs a script, for ``pipe``."""
        return ("EVALSHA", self._scripts[script].sha, len(keys), *keys, *args)

    def subscribe(self, channel: str) -> PubSub:
        """A subscription of its own connection."""
        with answering():
            subscription: PubSub = self._client.pubsub(ignore_subscribe_messages=True)
            subscription.subscribe(channel)
            return subscription

    def close(self) -> None:
        """Close every idle connection."""
        self._client.connection_pool.disconnect()

    def _retried(self, attempt: Callable[[], Answer]) -> Answer:
        """Try again after a lost connection, while the time limit of one call is not over.

        A change may be made twice that way. Every script gives the same state then; what it returns is
        that of the last try.
        """
        end = time.monotonic() + self._timeout
        for pause in _PAUSES:
            try:
                return attempt()
            except (ConnectionLost, OSError):
                if time.monotonic() + pause >= end:
                    raise
                time.sleep(pause)
        return attempt()

    def _send(self, commands: Sequence[Command]) -> list[Any]:
        with self._client.pipeline(transaction=False) as pipeline:
            for command in commands:
                pipeline.execute_command(*command)
            return pipeline.execute(raise_on_error=False)

    def _register_scripts(self) -> None:
        for text in self._scripts.values():
            self._client.execute_command("SCRIPT LOAD", text.source)


Record = TypeVar("Record", bound=Wire)


def read_record(kind: type[Record], text: str | None) -> Record | None:
    """The record of a JSON text; None, and a line in the log, when there is none or it cannot be read."""
    if text is None:
        return None
    try:
        return kind.from_json(text)
    except ValidationError as error:
        logger.warning("a %s cannot be read: %s", kind.__name__, error)
        return None


#: Items of one script call. A call alone costs a server about as much as an item, some 30 microseconds.
SIZE = 32

Item = TypeVar("Item")


def portions(items: Sequence[Item]) -> Iterator[Sequence[Item]]:
    """The items in order, at most ``SIZE`` at a time; nothing of nothing."""
    for start in range(0, len(items), SIZE):
        yield items[start : start + SIZE]
