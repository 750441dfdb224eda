"""HTTP connections that dial only checked addresses and can be cut at a deadline.

The name is resolved and checked where the socket is opened, so no second look-up can return another address.
Host header, TLS server name and certificate check still use the name of the URL.
"""

from __future__ import annotations

import contextlib
import math
import socket
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import requests
import requests.adapters
from urllib3 import HTTPConnectionPool, HTTPSConnectionPool, PoolManager
from urllib3.connection import HTTPConnection, HTTPSConnection
from urllib3.exceptions import ConnectTimeoutError, NewConnectionError

from epd.contracts.errors import SourceTimeout
from workers.fetch.guard import Target, look_up
from workers.limits import FetchLimits


@dataclass
class Exchange:
    """The request that a thread is making. ``deadline`` is in monotonic seconds, ``tap`` the open socket."""

    target: Target
    limits: FetchLimits
    deadline: float
    expired: bool = False
    tap: socket.socket | None = None
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def remaining(self) -> float:
        """Seconds until the deadline; raises ``SourceTimeout`` once it has passed."""
        left = self.deadline - time.monotonic()
        if left <= 0 or self.expired:
            raise SourceTimeout("the download took longer than its total time limit")
        return left

    def watch(self, tap: socket.socket) -> None:
        """Set the socket that is shut down at the deadline."""
        with self._lock:
            self.tap = tap

    def cut(self) -> None:
        """End the transfer, whether its thread waits for a handshake, headers or the body."""
        with self._lock:
            self.expired = True
            if self.tap is not None:
                with contextlib.suppress(OSError):
                    self.tap.shutdown(socket.SHUT_RDWR)


class _Watchdog:
    """Cuts exchanges at their deadlines, from one thread for all downloads of the process.

    The thread sleeps until the earliest deadline that it knows, also when that exchange is over by then. So
    a download wakes it only if it is due before all others, which is about once in a ``total_timeout``.
    """

    def __init__(self) -> None:
        self._running: dict[int, Exchange] = {}
        self._changed = threading.Condition()
        self._wakes_at = math.inf
        self._thread: threading.Thread | None = None

    def add(self, one: Exchange) -> None:
        """Watch an exchange until ``remove``."""
        with self._changed:
            self._running[id(one)] = one
            if self._thread is None or not self._thread.is_alive():
                self._wakes_at = math.inf
                self._thread = threading.Thread(target=self._run, name="epd-download-deadlines", daemon=True)
                self._thread.start()
            if one.deadline < self._wakes_at:
                self._wakes_at = one.deadline
                self._changed.notify()

    def remove(self, one: Exchange) -> None:
        """Stop watching an exchange."""
        with self._changed:
            del self._running[id(one)]

    def _run(self) -> None:
        while True:
            for one in self._wait_for_due():
                one.cut()

    def _wait_for_due(self) -> list[Exchange]:
        """Sleep until the next deadline, and return what is due then."""
        with self._changed:
            left = self._wakes_at - time.monotonic()
            if left > 0:
                self._changed.wait(min(left, threading.TIMEOUT_MAX))
            now = time.monotonic()
            due = [one for one in self._running.values() if one.deadline <= now and not one.expired]
            self._wakes_at = min(
                (one.deadline for one in self._running.values() if one.deadline > now), default=math.inf
            )
            return due


_watchdog = _Watchdog()
_here = threading.local()


@contextlib.contextmanager
def exchange(target: Target, limits: FetchLimits, deadline: float) -> Iterator[Exchange]:
    """Make one request in this thread; its socket is shut down at ``deadline``, in monotonic seconds."""
    current = Exchange(target=target, limits=limits, deadline=deadline)
    current.remaining()
    _here.exchange = current
    _watchdog.add(current)
    try:
        yield current
    finally:
        _watchdog.remove(current)
        _here.exchange = None


class _CheckedDial:
    """Mixin for urllib3's connections: dials only checked addresses and sends the path as it was written."""

    host: str
    port: int
    _tap: socket.socket | None = None

    def _new_conn(self) -> socket.socket:
        current: Exchange = _here.exchange
        wait = min(current.limits.connect_timeout, current.remaining())
        addresses = look_up(self.host, self.port, allow_hosts=current.limits.allow_hosts, timeout=wait)
        sock = _first_open(self, addresses, wait)
        # A second handle on the same connection: TLS takes the first one over.
        self._tap = sock.dup()
        current.watch(self._tap)
        return sock

    def request(self, method: str, url: str, *args: Any, **kwargs: Any) -> None:
        """Send the path as the URL has it: quoting it again would break signed URLs."""
        current: Exchange = _here.exchange
        if self._tap is not None:
            current.watch(self._tap)
        super().request(method, current.target.path, *args, **kwargs)  # type: ignore[misc]

    def close(self) -> None:
        """Close both handles."""
        tap, self._tap = self._tap, None
        if tap is not None:
            tap.close()
        super().close()  # type: ignore[misc]


def _first_open(connection: Any, addresses: tuple[str, ...], wait: float) -> socket.socket:
    """Try the addresses in order, for ``wait`` seconds in all."""
    end = time.monotonic() + wait
    failure: OSError | None = None
    for address in addresses:
        left = end - time.monotonic()
        if left <= 0:
            break
        try:
            return _open(address, connection.port, left)
        except OSError as error:
            failure = error
    if failure is None or isinstance(failure, TimeoutError):
        raise ConnectTimeoutError(connection, "connect timed out")
    raise NewConnectionError(connection, "connect failed") from failure


def _open(address: str, port: int, timeout: float) -> socket.socket:
    """Connect to a numeric address. ``socket.create_connection`` would call the resolver again."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.settimeout(timeout)
        sock.connect((address, port))
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    except BaseException:
        sock.close()
        raise
    return sock


class _PlainConnection(_CheckedDial, HTTPConnection):
    pass


class _TlsConnection(_CheckedDial, HTTPSConnection):
    pass


class _PlainPool(HTTPConnectionPool):
    ConnectionCls = _PlainConnection


class _TlsPool(HTTPSConnectionPool):
    ConnectionCls = _TlsConnection


class CheckedAdapter(requests.adapters.HTTPAdapter):
    """A requests adapter that dials only checked addresses and keeps few connections open."""

    def __init__(self) -> None:
        super().__init__(pool_connections=4, pool_maxsize=1, max_retries=0)

    def init_poolmanager(self, *args: Any, **kwargs: Any) -> None:
        """Use the checked connection classes."""
        super().init_poolmanager(*args, **kwargs)
        manager: PoolManager = self.poolmanager
        manager.pool_classes_by_scheme = {"http": _PlainPool, "https": _TlsPool}


def thread_session(allow_hosts: tuple[str, ...]) -> requests.Session:
    """This thread's session, which reads no proxy, netrc or certificate setting from the environment.

    A connection that was opened under another allow list is never reused.
    """
    if getattr(_here, "policy", None) != allow_hosts:
        previous: requests.Session | None = getattr(_here, "session", None)
        if previous is not None:
            previous.close()
        session = requests.Session()
        session.trust_env = False
        session.mount("http://", CheckedAdapter())
        session.mount("https://", CheckedAdapter())
        _here.session, _here.policy = session, allow_hosts
    kept: requests.Session = _here.session
    return kept
