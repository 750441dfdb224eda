"""A connection to the server for an event loop: one socket, many calls under way, no thread.

It serves the one path where each microsecond counts, answers from the cache. There redis-py's own asyncio
client costs five times as much a call, since it takes a connection from a pool and awaits every single reply
(measured: 142 against 31 microseconds of CPU for two commands). Parsing and packing are hiredis's own.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, cast

import hiredis
from redis.connection import SSLConnection, parse_url
from redis.exceptions import ConnectionError as ConnectionLost
from redis.exceptions import ResponseError

from epd.contracts.errors import SettingsError, StoreUnavailable
from epd.store.connection import Argument, Command, Connection, answering
from epd.store.scripts import Script, load_scripts

#: Seconds before each further try after a lost connection, as in ``Connection``.
_PAUSES = (0.02, 0.1)
#: Calls under way at once; each holds its command's bytes.
_MOST_CALLS = 4096
#: Calls under way at once over the blocking client; later ones queue behind them.
_MOST_THREADS = 32
_NO_SCRIPT = "NOSCRIPT"

#: Its stub knows commands of one part alone.
_pack = cast(Callable[[Command], bytes], hiredis.pack_command)


class _Link(asyncio.Protocol):
    """An open socket. Replies come in the order of the commands, so waiting calls are a queue."""

    def __init__(self) -> None:
        self._reader = hiredis.Reader(encoding="utf-8", replyError=ResponseError)
        self._calls: deque[tuple[asyncio.Future[list[Any]], list[Any], int]] = deque()
        self._transport: asyncio.Transport | None = None
        self.lost = False
        self.closed = asyncio.Event()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def connection_lost(self, exc: Exception | None) -> None:
        self._fail_calls()
        self.closed.set()

    def _fail_calls(self) -> None:
        self.lost = True
        while self._calls:
            future = self._calls.popleft()[0]
            if not future.done():
                future.set_exception(ConnectionLost("the connection was lost"))

    def data_received(self, data: bytes) -> None:
        try:
            self._reader.feed(data)
            while (reply := self._reader.gets()) is not False:
                self._take(reply)
        except hiredis.ProtocolError:
            self.drop()

    def _take(self, reply: Any) -> None:
        future, replies, count = self._calls[0]
        replies.append(reply)
        if len(replies) == count:
            self._calls.popleft()
            if not future.done():  # else its caller has left
                future.set_result(replies)

    def send(self, commands: Sequence[Command]) -> asyncio.Future[list[Any]]:
        """Write commands at once; the future holds their replies, errors among them."""
        if self.lost or self._transport is None:
            raise ConnectionLost("the connection was lost")
        if len(self._calls) >= _MOST_CALLS:
            raise StoreUnavailable("too many calls of the store are under way")
        future: asyncio.Future[list[Any]] = asyncio.get_running_loop().create_future()
        self._calls.append((future, [], len(commands)))
        self._transport.write(b"".join(map(_pack, commands)))
        return future

    def drop(self) -> None:
        """Give the connection up; who waits on it hears of it."""
        if self._transport is not None:
            self._transport.abort()
        self._fail_calls()


class LoopConnection:
    """Commands and scripts on a server, for one event loop. It connects with its first call."""

    def __init__(self, url: str, *, timeout: float) -> None:
        """``timeout`` is seconds for each call, connecting and repeating included.

        Raises:
            SettingsError: the URL is not one of a Redis server.
        """
        try:
            self._options = parse_url(url)
        except ValueError as error:
            raise SettingsError(f"EPD_STORE_URL: {error}") from error
        self._scripts = load_scripts()
        self._timeout = timeout
        self._link: _Link | None = None
        self._opening: asyncio.Task[_Link] | None = None

    @staticmethod
    def serves(url: str) -> bool:
        """Whether the URL is one of plain TCP or a socket file; TLS is left to redis-py."""
        return not issubclass(parse_url(url).get("connection_class", object), SSLConnection)

    async def call(self, *command: Argument) -> Any:
        """One command and its answer; raises ``StoreUnavailable``."""
        return (await self.pipe([command]))[0]

    async def run(self, script: Script, keys: Sequence[str], args: Sequence[Argument]) -> Any:
        """One script and its answer; raises ``StoreUnavailable``."""
        return (await self.pipe([self.script_command(script, keys, args)]))[0]

    def script_command(self, script: Script, keys: Sequence[str], args: Sequence[Argument]) -> Command:
        """The command that runs a script, for ``pipe``."""
        return ("EVALSHA", self._scripts[script].sha, len(keys), *keys, *args)

    async def pipe(self, commands: Sequence[Command]) -> list[Any]:
        """Commands in one round trip and their answers.

        A change may be made twice where the connection was lost, as by ``Connection``.

        Raises:
            StoreUnavailable: the server refuses, or does not answer in time.
        """
        with answering():
            try:
                async with asyncio.timeout(self._timeout):
                    answers = await self._retried(commands)
            except TimeoutError:
                self._drop()  # what is silent for so long is not asked again on the same socket
                raise
            for answer in answers:
                if isinstance(answer, Exception):
                    raise answer
            return answers

    async def close(self) -> None:
        """Close the socket, on its own loop. A later call connects anew."""
        link = self._drop()
        if link is not None:
            await asyncio.wait_for(link.closed.wait(), self._timeout)

    def _drop(self) -> _Link | None:
        link, self._link = self._link, None
        if link is not None:
            link.drop()
        return link

    async def _retried(self, commands: Sequence[Command]) -> list[Any]:
        end = time.monotonic() + self._timeout
        for pause in _PAUSES:
            try:
                return await self._sent(commands)
            except (ConnectionLost, OSError):
                if time.monotonic() + pause >= end:
                    raise
                await asyncio.sleep(pause)
        return await self._sent(commands)

    async def _sent(self, commands: Sequence[Command]) -> list[Any]:
        link = self._link
        if link is None or link.lost:
            link = await self._opened()
        answers = await link.send(commands)
        missing = [index for index, answer in enumerate(answers) if _is_missing_script(answer)]
        if missing:
            await link.send([("SCRIPT", "LOAD", text.source) for text in self._scripts.values()])
            again = await link.send([commands[index] for index in missing])
            for index, answer in zip(missing, again, strict=True):
                answers[index] = answer
        return answers

    async def _opened(self) -> _Link:
        """An open link; calls that come together open one."""
        if self._opening is None or self._opening.done():
            self._opening = asyncio.create_task(self._open())
            self._opening.add_done_callback(_look_at)
        return await asyncio.shield(self._opening)

    async def _open(self) -> _Link:
        options, loop = self._options, asyncio.get_running_loop()
        async with asyncio.timeout(self._timeout):
            if "path" in options:
                _, link = await loop.create_unix_connection(_Link, options["path"])
            else:
                host, port = options.get("host", "localhost"), options.get("port", 6379)
                _, link = await loop.create_connection(_Link, host, port)
            try:
                for answer in await link.send(self._greeting()):
                    if isinstance(answer, Exception):
                        raise answer
            except BaseException:
                link.drop()
                raise
        self._link = link
        return link

    def _greeting(self) -> list[Command]:
        """What a new socket has to say first."""
        options = self._options
        login = [options[name] for name in ("username", "password") if options.get(name)]
        commands: list[Command] = [("AUTH", *login)] if options.get("password") else []
        return [*commands, ("SELECT", int(options.get("db", 0)))]


class ThreadConnection:
    """The calls of ``LoopConnection`` over the blocking client, each in a thread: for a server with TLS."""

    def __init__(self, connection: Connection) -> None:
        """Whoever made the connection closes it."""
        self._connection = connection
        self._threads = ThreadPoolExecutor(_MOST_THREADS, thread_name_prefix="store")
        self.script_command = connection.script_command

    async def call(self, *command: Argument) -> Any:
        """One command and its answer."""
        return (await self.pipe([command]))[0]

    async def run(self, script: Script, keys: Sequence[str], args: Sequence[Argument]) -> Any:
        """One script and its answer."""
        return (await self.pipe([self.script_command(script, keys, args)]))[0]

    async def pipe(self, commands: Sequence[Command]) -> list[Any]:
        """Commands in one round trip and their answers."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._threads, self._connection.pipe, commands)

    async def close(self) -> None:
        """Nothing of its own is open."""


def _is_missing_script(answer: object) -> bool:
    return isinstance(answer, ResponseError) and str(answer).startswith(_NO_SCRIPT)


def _look_at(task: asyncio.Task[_Link]) -> None:
    """A failure that nobody waits for any more is no news."""
    if not task.cancelled():
        task.exception()
