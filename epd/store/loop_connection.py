"""The connection for an event loop: one socket, many calls under way at once, no thread.

It exists for answers from the cache, where every microsecond counts. redis-py's own asyncio client costs five
times as much per call, because it takes a connection from a pool and awaits every single reply (measured: 142
against 31 microseconds of CPU for two commands). hiredis does the parsing and packing.
"""

from __future__ import annotations

import asyncio
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any, NoReturn, cast

import hiredis
from redis.connection import SSLConnection, parse_url
from redis.exceptions import ConnectionError as ConnectionLost
from redis.exceptions import ResponseError

from epd.contracts.errors import SettingsError, StoreUnavailable
from epd.store.connection import RETRY_PAUSES, Connection, answering, script_command
from epd.store.scripts import Argument, Command, Script, load_scripts

#: Calls under way at once on one socket. Each keeps the bytes of its commands in memory.
_MAX_CALLS = 4096
#: Threads of a ``ThreadConnection``. Further calls wait for a free one.
_MAX_THREADS = 32
_NO_SCRIPT = "NOSCRIPT"
#: Seconds between two checks of a subscription's socket.
_PING_SECONDS = 15.0

# hiredis's type stub allows only commands whose arguments are all of one type.
_pack = cast(Callable[[Command], bytes], hiredis.pack_command)


class AsyncConnection(ABC):
    """Commands and scripts for one event loop.

    Every call raises ``StoreUnavailable`` when the server refuses it or does not answer in time.
    """

    @abstractmethod
    async def pipe(self, commands: Sequence[Command]) -> list[Any]:
        """Run commands in one round trip and return their answers in order.

        As with ``Connection``, a change may be made twice when the connection was lost.
        """

    @abstractmethod
    async def close(self) -> None:
        """Close what this object has opened. A later call connects again."""

    async def call(self, *command: Argument) -> Any:
        """Run one command and return its answer."""
        return (await self.pipe([command]))[0]

    async def run(self, script: Script, keys: Sequence[str], args: Sequence[Argument]) -> Any:
        """Run one script, atomically on the server, and return its result."""
        return (await self.pipe([script_command(script, keys, args)]))[0]


class LoopConnection(AsyncConnection):
    """All calls over one socket, which the first call opens. Plain TCP and socket files only."""

    def __init__(self, url: str, *, timeout: float) -> None:
        """Prepare a connection.

        Args:
            url: The URL of a Redis server, without TLS.
            timeout: Seconds for each call, with connecting and retries.

        Raises:
            SettingsError: ``url`` is not the URL of a Redis server.
        """
        try:
            self._options = parse_url(url)
        except ValueError as error:
            raise SettingsError(f"EPD_STORE_URL: {error}") from error
        self._timeout = timeout
        self._socket: _Socket | None = None
        self._opening: asyncio.Task[_Socket] | None = None

    @staticmethod
    def supports(url: str) -> bool:
        """Whether a URL is one of plain TCP or of a socket file. TLS needs a ``ThreadConnection``."""
        return not issubclass(parse_url(url).get("connection_class", object), SSLConnection)

    async def pipe(self, commands: Sequence[Command]) -> list[Any]:
        """Run commands in one round trip and return their answers in order."""
        with answering():
            try:
                async with asyncio.timeout(self._timeout):
                    answers = await self._retried(commands)
            except TimeoutError:
                self._drop()  # The replies may still come, so the next call needs another socket.
                raise
            for answer in answers:
                if isinstance(answer, Exception):
                    raise answer
            return answers

    async def close(self) -> None:
        """Close the socket. Call this on the loop that used it; a later call connects again."""
        socket = self._drop()
        if socket is not None:
            await asyncio.wait_for(socket.closed.wait(), self._timeout)

    async def listen(
        self, channel: str, heard: Callable[[str], None], opened: Callable[[], None]
    ) -> NoReturn:
        """Pass the messages of a channel to ``heard`` until the connection breaks; it is not shared.

        ``opened`` is called once, when the subscription has begun. Always raises ``StoreUnavailable``.
        """
        with answering():
            socket = await self._connected()
            socket.heard = heard
            try:
                async with asyncio.timeout(self._timeout):
                    (answer,) = await socket.send([("SUBSCRIBE", channel)])
                if isinstance(answer, Exception):
                    raise answer
                opened()
                while True:
                    with suppress(TimeoutError):
                        await asyncio.wait_for(socket.closed.wait(), _PING_SECONDS)
                    async with asyncio.timeout(self._timeout):
                        await socket.send([("PING",)])
            finally:
                socket.abort()

    def _drop(self) -> _Socket | None:
        socket, self._socket = self._socket, None
        if socket is not None:
            socket.abort()
        return socket

    async def _retried(self, commands: Sequence[Command]) -> list[Any]:
        end = time.monotonic() + self._timeout
        for pause in RETRY_PAUSES:
            try:
                return await self._send(commands)
            except (ConnectionLost, OSError):
                if time.monotonic() + pause >= end:
                    raise
                await asyncio.sleep(pause)
        return await self._send(commands)

    async def _send(self, commands: Sequence[Command]) -> list[Any]:
        socket = self._socket
        if socket is None or socket.lost:
            socket = await self._opened()
        answers = await socket.send(commands)
        missing = [index for index, answer in enumerate(answers) if _is_missing_script(answer)]
        if missing:
            await socket.send([("SCRIPT", "LOAD", text.source) for text in load_scripts().values()])
            again = await socket.send([commands[index] for index in missing])
            for index, answer in zip(missing, again, strict=True):
                answers[index] = answer
        return answers

    async def _opened(self) -> _Socket:
        """Open a socket. Calls that need one at the same time share it."""
        if self._opening is None or self._opening.done():
            self._opening = asyncio.create_task(self._open())
            self._opening.add_done_callback(_retrieve_exception)
        # A caller that is cancelled must not cancel the others' connect.
        return await asyncio.shield(self._opening)

    async def _open(self) -> _Socket:
        self._socket = await self._connected()
        return self._socket

    async def _connected(self) -> _Socket:
        options, loop = self._options, asyncio.get_running_loop()
        async with asyncio.timeout(self._timeout):
            if "path" in options:
                _, socket = await loop.create_unix_connection(_Socket, options["path"])
            else:
                host, port = options.get("host", "localhost"), options.get("port", 6379)
                _, socket = await loop.create_connection(_Socket, host, port)
            try:
                for answer in await socket.send(self._greeting()):
                    if isinstance(answer, Exception):
                        raise answer
            except BaseException:
                socket.abort()
                raise
        return socket

    def _greeting(self) -> list[Command]:
        """The first commands on a new socket: log in, and select the database."""
        options = self._options
        login = [options[name] for name in ("username", "password") if options.get(name)]
        commands: list[Command] = [("AUTH", *login)] if options.get("password") else []
        return [*commands, ("SELECT", int(options.get("db", 0)))]


class ThreadConnection(AsyncConnection):
    """All calls over a blocking ``Connection``, each in a thread. It serves URLs with TLS."""

    def __init__(self, connection: Connection) -> None:
        """Borrow a connection; its owner closes it."""
        self._connection = connection
        self._threads = ThreadPoolExecutor(_MAX_THREADS, thread_name_prefix="store")

    async def pipe(self, commands: Sequence[Command]) -> list[Any]:
        """Run commands in one round trip and return their answers in order."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._threads, self._connection.pipe, commands)

    async def close(self) -> None:
        """Do nothing: the connection is borrowed."""


class _Socket(asyncio.Protocol):
    """An open socket. Replies arrive in the order of the commands, so the calls under way form a queue."""

    def __init__(self) -> None:
        self._reader = hiredis.Reader(encoding="utf-8", replyError=ResponseError)
        # Per call: its future, the replies so far, and the number of commands.
        self._calls: deque[tuple[asyncio.Future[list[Any]], list[Any], int]] = deque()
        self._transport: asyncio.Transport | None = None
        self.lost = False
        self.closed = asyncio.Event()
        #: Called with each message of the channels that this socket has subscribed to.
        self.heard: Callable[[str], None] | None = None

    def send(self, commands: Sequence[Command]) -> asyncio.Future[list[Any]]:
        """Write commands at once. The future gives their replies, in which errors are exceptions.

        Raises:
            ConnectionLost: the socket is closed.
            StoreUnavailable: too many calls are under way.
        """
        if self.lost or self._transport is None:
            raise ConnectionLost("the connection was lost")
        if len(self._calls) >= _MAX_CALLS:
            raise StoreUnavailable("too many calls of the store are under way")
        future: asyncio.Future[list[Any]] = asyncio.get_running_loop().create_future()
        self._calls.append((future, [], len(commands)))
        self._transport.write(b"".join(map(_pack, commands)))
        return future

    def abort(self) -> None:
        """Close the socket without delay. The calls under way raise ``ConnectionLost``."""
        if self._transport is not None:
            self._transport.abort()
        self._fail_calls()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def connection_lost(self, exc: Exception | None) -> None:
        self._fail_calls()
        self.closed.set()

    def data_received(self, data: bytes) -> None:
        try:
            self._reader.feed(data)
            while (reply := self._reader.gets()) is not False:
                self._take(reply)
        except hiredis.ProtocolError:
            self.abort()

    def _take(self, reply: Any) -> None:
        if self.heard is not None and isinstance(reply, list) and reply[0] == "message":
            self.heard(reply[2])
            return
        future, replies, count = self._calls[0]
        replies.append(reply)
        if len(replies) == count:
            self._calls.popleft()
            if not future.done():  # Its caller may have been cancelled.
                future.set_result(replies)

    def _fail_calls(self) -> None:
        self.lost = True
        while self._calls:
            future = self._calls.popleft()[0]
            if not future.done():
                future.set_exception(ConnectionLost("the connection was lost"))


def _is_missing_script(answer: object) -> bool:
    return isinstance(answer, ResponseError) and str(answer).startswith(_NO_SCRIPT)


def _retrieve_exception(task: asyncio.Task[_Socket]) -> None:
    """Mark the exception of a connect as seen; asyncio would log it when every caller has left."""
    if not task.cancelled():
        task.exception()
