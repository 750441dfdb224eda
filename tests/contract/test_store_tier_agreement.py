"""Random lives of a cache with two tiers: the double and the real server keep the same files in each tier."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from epd.settings import Settings
from epd.store.base import Store
from epd.store.open import open_memory_store, open_store
from tests.contract.store_values import key_of
from tests.contract.tier_kit import MIB, Tiers, two_tiers

KEYS = 14
_key = st.integers(0, KEYS - 1)
STEPS = st.one_of(
    st.tuples(st.just("put"), _key),
    st.tuples(st.just("put"), _key),
    st.tuples(st.just("look"), _key),
    st.tuples(st.just("move")),
    st.tuples(st.just("move")),
    st.tuples(st.just("pin"), _key),
    st.tuples(st.just("read"), _key, st.sampled_from("ab")),
    st.tuples(st.just("let_go"), _key, st.sampled_from("ab")),
    st.tuples(st.just("remove"), _key),
    st.tuples(st.just("forget"), _key),
    st.tuples(st.just("lose"), st.sampled_from(["l1", "l2"]), _key),
    st.tuples(st.just("sweep")),
)


class World:
    """One store; the same steps are taken in another."""

    def __init__(self, tiers: Tiers) -> None:
        self.tiers = tiers
        self.embeddings = tiers.store.embeddings

    def step(self, name: str, *args: object) -> object:
        time.sleep(0.002)  # last use is told apart by the millisecond
        return getattr(self, f"_{name}")(*args)

    def state(self) -> object:
        """All that can be seen of the cache without using it."""
        rows = {
            row.entry.ref.key: (row.tiers, row.pinned) for row in self.embeddings.scan(None, limit=1000).rows
        }
        return rows, self.embeddings.stats(), self.tiers.names(self.tiers.l1), self.tiers.names(self.tiers.l2)

    def _put(self, key: int) -> object:
        return self.tiers.put(key)

    def _look(self, key: int) -> object:
        return self.embeddings.lookup([key_of(key)], counted=True)

    def _move(self) -> object:
        return self.embeddings.move(10)

    def _pin(self, key: int) -> object:
        return self.embeddings.pin([key_of(key)], 60)

    def _read(self, key: int, holder: str) -> object:
        return self.embeddings.lookup([key_of(key)], lease=60, holder=holder)

    def _let_go(self, key: int, holder: str) -> object:
        return self.embeddings.unpin([key_of(key)], holder)

    def _remove(self, key: int) -> object:
        return self.embeddings.remove([key_of(key)])

    def _forget(self, key: int) -> object:
        return self.embeddings.forget([key_of(key)])

    def _lose(self, tier: str, key: int) -> object:
        root = self.tiers.l1 if tier == "l1" else self.tiers.l2
        shutil.rmtree(root / key_of(key), ignore_errors=True)
        return None

    def _sweep(self) -> object:
        return self.embeddings.sweep(older_than=-60)


@pytest.fixture
def doubles(store_settings: Settings, tmp_path: Path) -> Iterator[list[Store]]:
    opened: list[Store] = []
    yield opened
    for store in opened:
        store.close()


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(STEPS, max_size=30))
def test_both_keep_the_same_files(
    store_settings: Settings,
    server: redis.Redis,
    tmp_path: Path,
    doubles: list[Store],
    steps: list[tuple[object, ...]],
) -> None:
    server.flushdb()
    worlds = []
    for name, open_one in (("double", open_memory_store), ("real", open_store)):
        shutil.rmtree(tmp_path / name, ignore_errors=True)
        made = two_tiers(
            lambda open_one=open_one, **changes: open_one(store_settings.model_copy(update=changes)),
            tmp_path / name,
            l2_bytes=MIB + MIB // 2,
        )
        doubles.append(made.store)
        worlds.append(World(made))
    double, real = worlds
    for number, (name, *args) in enumerate(steps):
        where = f"step {number}: {name} {args}"
        assert double.step(str(name), *args) == real.step(str(name), *args), where
        assert double.state() == real.state(), where
