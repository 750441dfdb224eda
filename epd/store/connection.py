"""The connection to Redis or Valkey: one client with time limits (Redis 7.0 or later, no cluster mode).

The server's ``maxmemory-policy`` must be ``noeviction`` or one of ``volatile-*``: the keys that bound the
embedding cache in bytes have no TTL, and the server must not evict them.

Every call ends: connecting, reading and waiting for a free connection have time limits, and retries are few.
Exceptions of redis-py become ``StoreUnavailable`` here and nowhere else.
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
from epd.round_trip import round_trip
from epd.store.scripts import Argument, Command, Script, load_scripts

logger = logging.getLogger(__name__)

#: Seconds before each retry after a lost connection. redis-py's own retries are nested (a connect within a
#: command), so that a hanging server would block a caller for nine time limits. Here one covers all tries.
RETRY_PAUSES = (0.02, 0.1)
#: Items in one script call. A call costs the server about as much as an item, some 30 microseconds.
CHUNK_SIZE = 32

#: More than the threads of one process ever need. Waiting for a free connection has a time limit too.
_MAX_CONNECTIONS = 64
_HEALTH_CHECK_SECONDS = 15

Answer = TypeVar("Answer")
Item = TypeVar("Item")
Record = TypeVar("Record", bound=Wire)


class Connection:
    """A thread-safe client: single commands, pipelines in one round trip, and the scripts of ``lua/``.

    Every call raises ``StoreUnavailable`` when the server refuses it or does not answer in time.
    """

    def __init__(self, url: str, *, timeout: float) -> None:
        """Prepare a client that connects with its first call.

        Args:
            url: The URL of a Redis server.
            timeout: Seconds for each connect and each read, and for all tries of a call together.

        Raises:
            SettingsError: ``url`` is not the URL of a Redis server.
        """
        self._client = redis.Redis.from_pool(_pool(url, timeout))
        self._timeout = timeout

    def call(self, *command: Argument) -> Any:
        """Run one command and return its answer."""
        with answering():
            return self._retried(lambda: self._client.execute_command(*command))

    def pipe(self, commands: Sequence[Command]) -> list[Any]:
        """Run commands in one round trip and return their answers in order."""
        with answering():
            answers = self._retried(lambda: self._send(commands))
            missing = [index for index, answer in enumerate(answers) if isinstance(answer, NoScriptError)]
            if missing:
                self._load_scripts()
                again = self._retried(lambda: self._send([commands[index] for index in missing]))
                for index, answer in zip(missing, again, strict=True):
                    answers[index] = answer
            for answer in answers:
                if isinstance(answer, Exception):
                    raise answer
            return answers

    def run(self, script: Script, keys: Sequence[str], args: Sequence[Argument]) -> Any:
        """Run one script, atomically on the server, and return its result."""
        return self.pipe([script_command(script, keys, args)])[0]

    def subscribe(self, channel: str) -> PubSub:
        """Subscribe to a channel, on a connection that the subscription does not share."""
        with answering():
            subscription: PubSub = self._client.pubsub(ignore_subscribe_messages=True)
            subscription.subscribe(channel)
            return subscription

    def close(self) -> None:
        """Close all idle connections."""
        self._client.connection_pool.disconnect()

    def _retried(self, attempt: Callable[[], Answer]) -> Answer:
        """Retry after a lost connection, as long as the time limit of the call allows.

        A change may be made twice. Every script leaves the same state then, and returns what its last run
        found.
        """
        end = time.monotonic() + self._timeout
        for pause in RETRY_PAUSES:
            try:
                return attempt()
            except (ConnectionLost, OSError):
                if time.monotonic() + pause >= end:
                    raise
                time.sleep(pause)
        return attempt()

    def _send(self, commands: Sequence[Command]) -> list[Any]:
        return round_trip(self._client, commands)

    def _load_scripts(self) -> None:
        for text in load_scripts().values():
            self._client.execute_command("SCRIPT LOAD", text.source)


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
        # The URL may contain a password, so it is not repeated.
        raise SettingsError(f"EPD_STORE_URL: {error}") from error


@contextmanager
def answering() -> Iterator[None]:
    """Turn any failure of the server, or of the network to it, into ``StoreUnavailable``."""
    try:
        yield
    except (RedisError, OSError) as error:
        logger.warning("store: %s: %s", type(error).__name__, error)
        raise StoreUnavailable(_complaint(error)) from error


def _complaint(error: Exception) -> str:
    """Describe a failure without the server's own text, which may contain keys and addresses."""
    if isinstance(error, ResponseError):
        # Servers begin with a code: OOM, MISCONF (its disk is full), NOREPLICAS, READONLY ...
        code = error.status_code or str(error).partition(" ")[0]
        return f"the store refuses ({code if code.isupper() and len(code) <= 20 else 'error'})"
    return f"the store does not answer: {type(error).__name__}"


def read_record(kind: type[Record], text: str | None) -> Record | None:
    """Parse the JSON text of a record. Text that cannot be read gives None and a line in the log."""
    if text is None:
        return None
    try:
        return kind.from_json(text)
    except ValidationError as error:
        logger.warning("a %s cannot be read: %s", kind.__name__, error)
        return None


def chunks(items: Sequence[Item]) -> Iterator[Sequence[Item]]:
    """Cut items into chunks of at most ``CHUNK_SIZE``, in order."""
    for start in range(0, len(items), CHUNK_SIZE):
        yield items[start : start + CHUNK_SIZE]


def script_command(script: Script, keys: Sequence[str], args: Sequence[Argument]) -> Command:
    """The command that runs a script. A server that does not know the script answers NOSCRIPT."""
    return ("EVALSHA", load_scripts()[script].sha, len(keys), *keys, *args)
