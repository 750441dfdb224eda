"""Listing the cache page by page, and removing entries while they are read."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
import redis

from epd.contracts.errors import InvalidRequest
from epd.contracts.responses import Tier
from epd.settings import Settings
from epd.store.open import Store, open_store
from epd.store.values import CacheRow
from tests.contract.cache.tier_kit import two_tiers
from tests.contract.store_values import entry_of, key_of, put_embedding, wait_until
from tests.store_kit import MakeStore

KEY = key_of(1)


def _pages(store: Store, limit: int) -> list[list[CacheRow]]:
    pages, cursor = [], None
    while True:
        page = store.embeddings.scan(cursor, limit=limit)
        pages.append(list(page.rows))
        if page.cursor is None:
            return pages
        cursor = page.cursor
        assert len(pages) < 1000


def test_an_empty_cache_is_one_empty_page(store: Store) -> None:
    assert _pages(store, 10) == [[]]


def test_a_row_names_embedding_and_tiers(make_store: MakeStore, tmp_path: Path) -> None:
    tiers = two_tiers(make_store, tmp_path)
    keys = tiers.put(1, 2, 3, 4)
    tiers.settle()
    tiers.hits(keys[:1])
    tiers.store.embeddings.pin(keys[1:2], 60)
    tiers.settle()
    rows = {row.entry.ref.key: row for page in _pages(tiers.store, 100) for row in page}
    assert set(rows) == set(keys)
    where = [rows[key].tiers for key in keys]
    assert where == [(Tier.L1, Tier.L2), (Tier.L1,), (Tier.L2,), (Tier.L1,)]
    assert [rows[key].pinned for key in keys] == [False, True, False, False]
    assert all(abs(row.used_at - time.time()) < 60 for row in rows.values())
    assert rows[keys[0]].entry.metadata.embedding_key == keys[0]


def test_everything_is_given_whatever_the_size_of_a_page(store: Store) -> None:
    keys = {put_embedding(store, key_of(number)).entry.ref.key for number in range(30)}
    for limit in (1, 7, 30, 1000):
        rows = [row.entry.ref.key for page in _pages(store, limit) for row in page]
        assert set(rows) == keys


def test_a_large_index_comes_in_pages_and_removing_between_them_skips_none(
    store_settings: Settings, server: redis.Redis
) -> None:
    """More than the server keeps in one piece (``hash-max-listpack-entries``)."""
    store = open_store(store_settings)
    keys = {put_embedding(store, key_of(number)).entry.ref.key for number in range(700)}
    seen: set[str] = set()
    cursor, pages = None, 0
    while True:
        page = store.embeddings.scan(cursor, limit=100)
        found = {row.entry.ref.key for row in page.rows}
        assert len(found) < 300
        seen |= found
        store.embeddings.forget(sorted(found))
        cursor, pages = page.cursor, pages + 1
        if cursor is None:
            break
    assert seen == keys
    assert pages > 2
    assert store.embeddings.stats().entries == 0
    store.close()


@pytest.mark.parametrize("cursor", ["ff", "-1", str(1 << 64), "1e3"])
def test_an_invalid_cursor_is_refused(store_settings: Settings, server: redis.Redis, cursor: str) -> None:
    store = open_store(store_settings)
    with pytest.raises(InvalidRequest, match="cursor"):
        store.embeddings.scan(cursor)
    store.close()


def test_an_expired_entry_is_not_listed(make_store: MakeStore) -> None:
    store = make_store(embedding_ttl=0.2)
    put_embedding(store, KEY)
    wait_until(lambda: _pages(store, 10) == [[]])


def test_a_forgotten_embedding_is_removed_with_its_file(store: Store) -> None:
    put_embedding(store, KEY)
    assert store.embeddings.forget([KEY, key_of(2)]) == 1
    assert store.embeddings.lookup([KEY]) == [None]
    assert not store.embeddings.path(KEY).exists()
    assert store.embeddings.forget([KEY]) == 0
    assert store.embeddings.stats().totals.removed == 1


def test_the_file_of_a_pinned_one_stays_readable_and_is_swept_after_its_lease(store: Store) -> None:
    put_embedding(store, KEY)
    store.embeddings.pin([KEY], 0.3)
    assert store.embeddings.forget([KEY]) == 1
    assert store.embeddings.lookup([KEY]) == [None]
    stored, file = store.embeddings.open(KEY)
    with file:
        assert stored.shape == entry_of(KEY).ref.shape
    assert store.embeddings.sweep(older_than=-60) == 0
    wait_until(lambda: store.embeddings.sweep(older_than=-60) == 1)
    assert not store.embeddings.path(KEY).exists()


def test_an_embedding_made_again_after_removal_is_a_hit(store: Store) -> None:
    put_embedding(store, KEY)
    store.embeddings.pin([KEY], 60)
    store.embeddings.forget([KEY])
    entry = put_embedding(store, KEY).entry
    assert store.embeddings.lookup([KEY]) == [entry]
