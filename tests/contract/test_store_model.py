"""Random calls: jobs and flights follow a model of their rules, and two tiers keep what they promise."""

from __future__ import annotations

import shutil
import time
import uuid
from pathlib import Path

import redis
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from epd.contracts.errors import CorruptMedia
from epd.contracts.job import FINAL_STATES, PartId, PartRecord, Priority, Stage, State
from epd.contracts.media import Modality
from epd.store.admissions import Load
from epd.store.open import Store
from epd.store.values import Claim, Completed
from tests.contract.cache.tier_kit import MIB, Tiers, two_tiers
from tests.contract.store_values import data_of, entry_of, job_record, key_of, waiter_of
from tests.store_kit import MakeStore

PARTS = [PartId(index, track) for index in (0, 1) for track in (Modality.IMAGE, Modality.AUDIO)]
JOBS = range(3)
KEY = st.integers(0, 1)
JOB = st.integers(0, len(JOBS))  # the last number is a job that does not exist
WHO = st.tuples(JOB, st.sampled_from(PARTS))
RUNS = settings(max_examples=40, stateful_step_count=25, deadline=None, suppress_health_check=[*HealthCheck])


class Lives(RuleBasedStateMachine):
    """Jobs with parts, and flights whose leader and waiters are such parts."""

    def __init__(self, store: Store) -> None:
        super().__init__()
        self.store = store
        self.ids = [uuid.uuid4().hex for _ in (*JOBS, "none")]
        self.parts: dict[int, dict[PartId, tuple[State, Stage | None]]] = {}
        self.closed: set[int] = set()
        self.flights: dict[int, dict[tuple[int, PartId], bool]] = {}  # waiter: whether it is the leader
        self.made: set[int] = set()
        self.held = dict.fromkeys(JOBS, Load(2, 101))
        self.notices: list[tuple[object, ...]] = []
        self.watcher = uuid.uuid4().hex
        store.notices.listen(self.watcher, 0)
        for job in JOBS:
            images = [part for part in PARTS if part.track is Modality.IMAGE]
            self.parts[job] = dict.fromkeys(images, (State.QUEUED, None))
            store.admissions.admit(
                self.ids[job], self.held[job], priority=Priority.BULK, until=time.time() + 60
            )
            record = job_record(self.ids[job], items=2)
            store.jobs.create(record, {part: PartRecord() for part in images}, self.watcher)

    def teardown(self) -> None:
        notices = self.store.notices.listen(self.watcher, 0.05)
        self.store.notices.close()
        heard = [(one.job_id, one.part, one.state, one.stage or "", one.job_final) for one in notices]
        assert sorted(heard) == sorted(self.notices)

    def set(self, job: int, part: PartId, state: State, stage: Stage | None = None) -> bool:
        """What every change of a part comes to; False where the part is final or not there."""
        parts = self.parts.get(job, {})
        if part not in parts or parts[part][0] in FINAL_STATES:
            return False
        if parts[part] != (state, stage):
            parts[part] = (state, stage)
            left = sum(one not in FINAL_STATES for one, _ in parts.values())
            if left < self.held[job].items:
                before = self.held[job]
                self.held[job] = Load(left, before.nbytes * left // before.items)
            self.notices.append((self.ids[job], str(part), state, stage or "", left == 0))
        return True

    def add(self, job: int, part: PartId, *, reported: bool) -> bool:
        parts = self.parts.get(job)
        if parts is None or (job in self.closed and part not in parts):
            return False
        if part not in parts:
            parts[part] = (State.QUEUED, None)
            if reported:
                self.notices.append((self.ids[job], str(part), State.QUEUED, "", False))
        return True

    def is_wanted(self, job: int, part: PartId) -> bool:
        state, _ = self.parts.get(job, {}).get(part, (State.QUEUED, None))
        return job in JOBS and job not in self.closed and state not in FINAL_STATES

    @rule(key=KEY, who=WHO)
    def claim(self, key: int, who: tuple[int, PartId]) -> None:
        expected = Claim.HIT
        if key not in self.made:
            flight = self.flights.setdefault(key, {})
            others = any(leads for waiter, leads in flight.items() if waiter != who)
            flight[who] = not others
            expected = Claim.WAITING if others else Claim.OWNED
        assert self.store.flights.claim(key_of(key), waiter_of(self.ids[who[0]], who[1])) is expected

    @rule(key=KEY, who=WHO)
    def complete(self, key: int, who: tuple[int, PartId]) -> None:
        entry = entry_of(key_of(key), tokens=key + 1)
        self.store.embeddings.publish_file(entry.ref, data_of(entry), {})
        finished = self.set(*who, State.DONE)
        for waiter in self.flights.pop(key, {}):
            if self.is_wanted(*waiter):
                self.add(*waiter, reported=False)
            finished += self.set(*waiter, State.DONE)
        self.made.add(key)
        done = Completed(entry, self.ids[who[0]], who[1], {"encode": 1.0})
        assert self.store.flights.complete([done]) == [finished]

    @rule(key=KEY)
    def fail(self, key: int) -> None:
        finished = sum(self.set(*waiter, State.FAILED) for waiter in self.flights.pop(key, {}))
        assert self.store.flights.fail(key_of(key), CorruptMedia("broken")) == finished

    @rule(key=KEY, who=WHO)
    def withdraw(self, key: int, who: tuple[int, PartId]) -> None:
        flight = self.flights.get(key, {})
        flight.pop(who, None)
        successors: set[str] = set()
        if flight and not any(flight.values()):
            successors = {f"message of {self.ids[job]}" for job, part in flight if self.is_wanted(job, part)}
        if key in self.flights and not any(flight.values()) and not successors:
            del self.flights[key]
        message = self.store.flights.withdraw(key_of(key), self.ids[who[0]], who[1])
        assert message in successors if successors else message is None

    @rule(who=WHO, stage=st.sampled_from(list(Stage)))
    def advance(self, who: tuple[int, PartId], stage: Stage) -> None:
        changed = self.store.jobs.advance(self.ids[who[0]], who[1], stage)
        assert changed is self.set(*who, State.RUNNING, stage)

    @rule(who=WHO)
    def add_part(self, who: tuple[int, PartId]) -> None:
        assert self.store.jobs.add_part(self.ids[who[0]], who[1]) is self.add(*who, reported=True)

    @rule(who=WHO, state=st.sampled_from([State.DONE, State.FAILED]))
    def finish(self, who: tuple[int, PartId], state: State) -> None:
        changed = self.store.jobs.finish(self.ids[who[0]], who[1], PartRecord(state=state))
        assert changed is self.set(*who, state)

    @rule(job=JOB, state=st.sampled_from([State.CANCELLED, State.EXPIRED]))
    def close(self, job: int, state: State) -> None:
        assert self.store.jobs.close(self.ids[job], PartRecord(state=state)) is (job in JOBS)
        if any(one not in FINAL_STATES for one, _ in self.parts.get(job, {}).values()):
            self.closed.add(job)
        for part in sorted(self.parts.get(job, {}), key=str):
            self.set(job, part, state)

    @rule(key=KEY)
    def remove(self, key: int) -> None:
        assert self.store.embeddings.remove([key_of(key)]) == (key in self.made)
        self.made.discard(key)

    @invariant()
    def agrees(self) -> None:
        for job, parts in self.parts.items():
            view = self.store.jobs.view(self.ids[job])
            assert view is not None
            seen = {part: (record.state, record.stage) for part, record in view.parts.items()}
            assert seen == {str(part): state for part, state in parts.items()}
        found = self.store.embeddings.lookup([key_of(0), key_of(1)])
        assert [entry is not None for entry in found] == [0 in self.made, 1 in self.made]
        total = Load(sum(x.items for x in self.held.values()), sum(x.nbytes for x in self.held.values()))
        assert self.store.admissions.held() == self.store.admissions.held(Priority.BULK) == total


def test_jobs_and_flights_follow_their_rules(store: Store, server: redis.Redis) -> None:
    def on_an_empty_database() -> Lives:
        server.flushdb()
        return Lives(store)

    run_state_machine_as_test(on_an_empty_database, settings=RUNS)


class TierLives(RuleBasedStateMachine):
    """Embeddings of a quarter MiB over two tiers that take four and six of them."""

    def __init__(self, tiers: Tiers) -> None:
        super().__init__()
        self.tiers = tiers
        self.embeddings = tiers.store.embeddings
        self.pinned: set[str] = set()
        self.gone: set[str] = {key_of(number) for number in range(14)}

    def teardown(self) -> None:
        """What nobody pins can be made room for, and nothing is left without a name."""
        for key in self.pinned:
            self.embeddings.unpin([key], "me")
        self.embeddings.remove([key_of(number) for number in range(14)])
        assert self.embeddings.stats().entries == 0
        assert self.tiers.names(self.tiers.l1) | self.tiers.names(self.tiers.l2) == set()

    KEY = st.integers(0, 13).map(key_of)

    @rule(number=st.integers(0, 13))
    def put(self, number: int) -> None:
        self.tiers.put(number)
        self.gone.discard(key_of(number))

    @rule(key=KEY)
    def look(self, key: str) -> None:
        (entry,) = self.embeddings.lookup([key], counted=True)
        assert entry is None or self.tiers.is_right(key)

    @rule()
    def move(self) -> None:
        self.embeddings.move(10)

    @rule(key=KEY)
    def pin(self, key: str) -> None:
        if len(self.pinned) < 2 and self.embeddings.lookup([key], lease=60, holder="me") != [None]:
            self.pinned.add(key)

    @rule(key=KEY, how=st.sampled_from(["remove", "forget"]))
    def take_out(self, key: str, how: str) -> None:
        getattr(self.embeddings, how)([key])
        self.gone.add(key)
        self.pinned.discard(key)

    @rule(key=KEY, tier=st.sampled_from(["l1", "l2"]))
    def lose(self, key: str, tier: str) -> None:
        shutil.rmtree(getattr(self.tiers, tier) / key, ignore_errors=True)
        self.pinned.discard(key)

    @rule()
    def sweep(self) -> None:
        self.embeddings.sweep(older_than=-60)
        named = {row.entry.ref.key for row in self.embeddings.scan(None, limit=1000).rows}
        files = self.tiers.names(self.tiers.l1) | self.tiers.names(self.tiers.l2)
        assert files <= named | self.pinned | self.gone

    @invariant()
    def holds(self) -> None:
        stats = self.embeddings.stats()
        assert stats.nbytes <= MIB
        assert stats.l2 is not None
        assert stats.l2.nbytes <= MIB + MIB // 2
        rows = {row.entry.ref.key: row for row in self.embeddings.scan(None, limit=1000).rows}
        assert not self.gone & rows.keys()
        assert self.pinned <= rows.keys()
        assert all(rows[key].pinned for key in self.pinned)


def test_tiers_keep_their_bounds_their_pins_and_their_word(make_store: MakeStore, tmp_path: Path) -> None:
    tiers = two_tiers(make_store, tmp_path, l2_bytes=MIB + MIB // 2)
    run_state_machine_as_test(lambda: TierLives(tiers), settings=RUNS)
