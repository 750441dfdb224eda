"""Stores on empty databases of the session's server: a flush is cheaper than another server."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import redis

from epd.settings import Settings
from epd.store import keys
from epd.store.open import Store, open_store

#: Databases of the session's server. Tests that name one themselves use the first 16.
DATABASES = 32
_FIRST_FREE = 16

#: Keys without a TTL that ``keys.py`` documents: bounded by byte limits, by open flights, by admission or
#: by the config.
BOUNDED = {keys.LRU, keys.LRU_BYTES, keys.LRU2, keys.LRU2_BYTES, keys.LRU_SIZES, keys.FLIGHTS}
BOUNDED |= {keys.CACHE_TOTALS}
BOUNDED |= {keys.LOAD, keys.LOAD_JOBS, keys.LOAD_CHECKS}
BOUNDED_PREFIX = keys.encoder("")

MakeStore = Callable[..., Store]


class Stores:
    """Opens stores on one database, and closes them with it."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._opened: list[Store] = []

    def open(self, settings: Settings) -> Store:
        """A store with these settings, but on this database."""
        self._opened.append(open_store(settings.model_copy(update={"store_url": self.url})))
        return self._opened[-1]

    def close(self) -> None:
        for store in self._opened:
            store.close()


class Databases:
    """The databases of one server that no other test uses at the moment."""

    def __init__(self, server_url: str) -> None:
        self._server_url = server_url
        self._free = list(range(_FIRST_FREE, DATABASES))

    @contextmanager
    def empty(self) -> Iterator[Stores]:
        """An empty database, until the block ends."""
        number = self._free.pop()
        stores = Stores(f"{self._server_url}/{number}")
        with redis.Redis.from_url(stores.url) as client:
            client.flushdb()
        try:
            yield stores
        finally:
            stores.close()
            self._free.append(number)


def leaked_keys(client: redis.Redis) -> list[str]:
    """Keys of ours that neither end by themselves nor are bounded."""
    return [
        key
        for key in client.scan_iter(f"{keys.PREFIX}*")
        if client.ttl(key) == -1 and key not in BOUNDED and not key.startswith(BOUNDED_PREFIX)
    ]
