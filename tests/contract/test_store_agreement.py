"""Random lives of jobs and flights: the double and the real server answer every call alike."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from epd.contracts.errors import CorruptMedia
from epd.contracts.job import PartId, PartRecord, Priority, Stage, State
from epd.contracts.media import Modality
from epd.settings import Settings
from epd.store.base import Completed, Load, Store
from epd.store.open import open_memory_store, open_store
from tests.contract.store_values import data_of, entry_of, job_record, key_of, waiter_of

JOBS, KEYS = 3, 2
PARTS = [PartId(index, track) for index in (0, 1) for track in (Modality.IMAGE, Modality.AUDIO)]

_job = st.integers(0, JOBS)  # the last number is a job that does not exist
_part = st.sampled_from(PARTS)
_key = st.integers(0, KEYS - 1)
_final = st.sampled_from([State.DONE, State.FAILED])
STEPS = st.one_of(
    st.tuples(st.just("claim"), _key, _job, _part),
    st.tuples(st.just("complete"), _key, _job, _part),
    st.tuples(st.just("fail"), _key),
    st.tuples(st.just("withdraw"), _key, _job, _part),
    st.tuples(st.just("extend"), _key),
    st.tuples(st.just("advance"), _job, _part, st.sampled_from(list(Stage))),
    st.tuples(st.just("add_part"), _job, _part),
    st.tuples(st.just("finish"), _job, _part, _final),
    st.tuples(st.just("close"), _job, st.sampled_from([State.CANCELLED, State.EXPIRED])),
    st.tuples(st.just("remove"), _key),
    st.tuples(st.just("lookup"), _key),
)


class World:
    """One store with the same jobs and keys as the other."""

    def __init__(self, store: Store, job_ids: list[str], watcher: str) -> None:
        self.store = store
        self.job_ids = job_ids
        self.watcher = watcher
        store.notices.listen(watcher, 0)
        for job_id in job_ids[:JOBS]:
            parts = {part: PartRecord() for part in PARTS if part.track is Modality.IMAGE}
            ask, until = Load(2, 101), time.time() + 60
            assert store.admissions.admit(job_id, ask, priority=Priority.BULK, until=until)
            store.jobs.create(job_record(job_id, items=2), parts, watcher)

    def step(self, name: str, *args: object) -> object:
        return getattr(self, f"_{name}")(*args)

    def state(self) -> object:
        """All that can be seen of the jobs and of the cache."""
        views = [self.store.jobs.view(job_id) for job_id in self.job_ids]
        seen = [view and (view.parts, view.state) for view in views]
        stats = self.store.embeddings.stats()
        return (
            seen,
            stats.entries,
            stats.nbytes,
            [self.store.admissions.held(priority) for priority in (None, *Priority)],
            self.store.embeddings.lookup([key_of(n) for n in range(KEYS)]),
        )

    def notices(self) -> list[tuple[object, ...]]:
        """What was published, in an order that does not hang on how a hash lists its fields."""
        heard = self.store.notices.listen(self.watcher, 0.05)
        return sorted((n.job_id, n.part, n.state, n.stage or "", n.job_final) for n in heard)

    def _claim(self, key: int, job: int, part: PartId) -> object:
        return self.store.flights.claim(key_of(key), waiter_of(self.job_ids[job], part, "message"))

    def _complete(self, key: int, job: int, part: PartId) -> object:
        entry = entry_of(key_of(key), tokens=key + 1)
        self.store.embeddings.publish_file(entry.ref, data_of(entry), {})
        return self.store.flights.complete([Completed(entry, self.job_ids[job], part, {"encode": 1.0})])

    def _fail(self, key: int) -> object:
        return self.store.flights.fail(key_of(key), CorruptMedia("broken"))

    def _withdraw(self, key: int, job: int, part: PartId) -> object:
        return self.store.flights.withdraw(key_of(key), self.job_ids[job], part)

    def _extend(self, key: int) -> object:
        return self.store.flights.extend(key_of(key))

    def _advance(self, job: int, part: PartId, stage: Stage) -> object:
        return self.store.jobs.advance(self.job_ids[job], part, stage)

    def _add_part(self, job: int, part: PartId) -> object:
        return self.store.jobs.add_part(self.job_ids[job], part)

    def _finish(self, job: int, part: PartId, state: State) -> object:
        return self.store.jobs.finish(self.job_ids[job], part, PartRecord(state=state))

    def _close(self, job: int, state: State) -> object:
        return self.store.jobs.close(self.job_ids[job], PartRecord(state=state))

    def _remove(self, key: int) -> object:
        return self.store.embeddings.remove([key_of(key)])

    def _lookup(self, key: int) -> object:
        return self.store.embeddings.lookup([key_of(key)])


@pytest.fixture
def stores(store_settings: Settings, server: redis.Redis, tmp_path: Path) -> Iterator[tuple[Store, Store]]:
    double = open_memory_store(store_settings.model_copy(update={"embedding_dir": tmp_path / "double"}))
    real = open_store(store_settings)
    yield double, real
    real.close()


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(STEPS, max_size=25))
def test_both_answer_alike(stores: tuple[Store, Store], steps: list[tuple[object, ...]]) -> None:
    job_ids = [uuid.uuid4().hex for _ in range(JOBS + 1)]
    for store in stores:
        for key in range(KEYS):
            store.flights.fail(key_of(key), CorruptMedia("the life before"))
        store.embeddings.remove([key_of(key) for key in range(KEYS)])
    double, real = (World(store, job_ids, uuid.uuid4().hex) for store in stores)
    for number, (name, *args) in enumerate(steps):
        where = f"step {number}: {name} {args}"
        assert double.step(str(name), *args) == real.step(str(name), *args), where
        assert double.state() == real.state(), where
    assert double.notices() == real.notices()
    real.store.notices.close()
    double.store.notices.close()
