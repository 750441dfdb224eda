"""Jobs: the first final record wins, counters move once, and a removed job stays removed."""

from __future__ import annotations

import time
import uuid
from concurrent.futures import ThreadPoolExecutor

import pytest

from epd.contracts.errors import DecodeTimeout
from epd.contracts.job import FINAL_STATES, ErrorInfo, PartId, PartRecord, Stage, State
from epd.contracts.media import Modality
from epd.store.open import Store
from tests.contract.store_values import (
    AUDIO,
    IMAGE,
    entry_of,
    job_record,
    key_of,
    listen_until,
    new_job,
    part_of,
    wait_until,
)
from tests.store_kit import MakeStore

GONE = "0" * 32
FAILED = PartRecord(state=State.FAILED, error=ErrorInfo.of(DecodeTimeout("too slow")))
DONE = PartRecord(state=State.DONE, ref=entry_of(key_of(1)).ref, metadata=entry_of(key_of(1)).metadata)


def test_a_job_reads_as_it_was_written(store: Store) -> None:
    record = job_record(uuid.uuid4().hex, items=2)
    parts = {PartId(0, Modality.IMAGE): DONE, PartId(1, Modality.IMAGE): PartRecord()}
    store.jobs.create(record, parts)
    view = store.jobs.view(record.job_id)
    assert view is not None
    assert view.record == record
    assert view.parts == {"0.image": DONE, "1.image": PartRecord()}
    assert view.state is State.RUNNING


def test_creating_again_changes_nothing(store: Store) -> None:
    job = new_job(store)
    store.jobs.finish(job, IMAGE, DONE)
    store.jobs.create(job_record(job), {IMAGE: PartRecord()})
    assert part_of(store, job) == DONE


def test_the_first_final_record_wins(store: Store) -> None:
    job = new_job(store)
    assert store.jobs.finish(job, IMAGE, FAILED)
    assert not store.jobs.finish(job, IMAGE, DONE)
    assert part_of(store, job) == FAILED


def test_parts_of_many_jobs_advance_at_once(store: Store) -> None:
    mine, final = new_job(store), new_job(store)
    store.jobs.finish(final, IMAGE, DONE)
    asked = [(mine, IMAGE), (GONE, IMAGE), (final, IMAGE), (mine, AUDIO)]
    assert store.jobs.advance_all(asked, Stage.ENCODE) == [True, False, False, False]
    assert part_of(store, mine).stage is Stage.ENCODE
    assert store.jobs.advance_all([], Stage.ENCODE) == []


def test_of_many_threads_one_finishes_a_part(store: Store) -> None:
    job = new_job(store, items=2)
    with ThreadPoolExecutor(8) as pool:
        wins = list(pool.map(lambda _: store.jobs.finish(job, IMAGE, DONE), range(16)))
    assert wins.count(True) == 1
    view = store.jobs.view(job)
    assert view is not None
    assert view.state is State.RUNNING


def test_a_part_advances_until_it_is_final(store: Store) -> None:
    job = new_job(store)
    assert store.jobs.advance(job, IMAGE, Stage.FETCH)
    assert part_of(store, job) == PartRecord(state=State.RUNNING, stage=Stage.FETCH)
    assert store.jobs.advance(job, IMAGE, Stage.ENCODE)
    assert store.jobs.advance(job, IMAGE, Stage.FETCH)
    store.jobs.finish(job, IMAGE, DONE)
    assert not store.jobs.advance(job, IMAGE, Stage.DECODE)
    assert part_of(store, job) == DONE


def test_a_part_that_was_cached_at_the_start_is_final(store: Store) -> None:
    record = job_record(uuid.uuid4().hex)
    store.jobs.create(record, {IMAGE: DONE})
    assert not store.jobs.advance(record.job_id, IMAGE, Stage.FETCH)
    assert not store.jobs.finish(record.job_id, IMAGE, FAILED)


def test_a_job_that_is_gone_stays_gone(store: Store) -> None:
    assert store.jobs.view(GONE) is None
    assert not store.jobs.watch(GONE, "w")
    assert not store.jobs.advance(GONE, IMAGE, Stage.FETCH)
    assert not store.jobs.add_part(GONE, AUDIO)
    assert not store.jobs.finish(GONE, IMAGE, DONE)
    assert not store.jobs.close(GONE, PartRecord(state=State.CANCELLED))
    assert store.jobs.view(GONE) is None


def test_an_unknown_part_is_not_finished(store: Store) -> None:
    job = new_job(store)
    assert not store.jobs.finish(job, AUDIO, DONE)
    assert not store.jobs.advance(job, AUDIO, Stage.DECODE)


def test_a_part_is_added_once_and_keeps_the_job_open(store: Store) -> None:
    job = new_job(store, watcher="w")
    store.notices.listen("w", 0)
    assert store.jobs.add_part(job, AUDIO)
    store.jobs.advance(job, AUDIO, Stage.DECODE)
    assert store.jobs.add_part(job, AUDIO)
    assert part_of(store, job, AUDIO).state is State.RUNNING
    store.jobs.finish(job, IMAGE, DONE)
    store.jobs.finish(job, AUDIO, DONE)
    finals = [notice.job_final for notice in listen_until(store, "w", 4) if notice.state is State.DONE]
    assert finals == [False, True]


@pytest.mark.parametrize("state", [State.CANCELLED, State.EXPIRED])
def test_closing_makes_every_open_part_final(store: Store, state: State) -> None:
    job = new_job(store, items=3)
    store.jobs.finish(job, IMAGE, DONE)
    store.jobs.advance(job, PartId(1, Modality.IMAGE), Stage.DECODE)
    assert store.jobs.close(job, PartRecord(state=state))
    view = store.jobs.view(job)
    assert view is not None
    assert [view.parts[f"{index}.image"].state for index in range(3)] == [State.DONE, state, state]
    assert not store.jobs.add_part(job, AUDIO)
    assert store.jobs.close(job, PartRecord(state=State.EXPIRED))
    assert store.jobs.view(job) == view


def test_closing_a_finished_job_changes_nothing(store: Store) -> None:
    job = new_job(store)
    store.jobs.finish(job, IMAGE, DONE)
    before = store.jobs.view(job)
    assert store.jobs.close(job, PartRecord(state=State.CANCELLED))
    assert store.jobs.view(job) == before


def test_a_finished_job_is_forgotten_after_its_ttl(make_store: MakeStore) -> None:
    store = make_store(job_ttl=0.2)
    finished, unfinished = new_job(store), new_job(store)
    store.jobs.finish(finished, IMAGE, DONE)
    wait_until(lambda: store.jobs.view(finished) is None)
    assert store.jobs.view(unfinished) is not None


def test_an_unfinished_job_is_forgotten_after_its_deadline(make_store: MakeStore) -> None:
    store = make_store(job_ttl=0.3)
    job = new_job(store, deadline=0.3)
    assert store.jobs.view(job) is not None
    wait_until(lambda: store.jobs.view(job) is None)
    assert not store.jobs.finish(job, IMAGE, DONE)


def test_a_large_job_is_written_whole(store: Store) -> None:
    items = 2000
    job = new_job(store, items=items)
    view = store.jobs.view(job)
    assert view is not None
    assert len(view.parts) == items
    assert store.jobs.close(job, PartRecord(state=State.EXPIRED))
    closed = store.jobs.view(job)
    assert closed is not None
    assert all(part.state in FINAL_STATES for part in closed.parts.values())


def test_notices_tell_each_change_in_order_to_every_watcher(store: Store) -> None:
    for watcher in ("a", "b"):
        assert store.notices.listen(watcher, 0.01) == []
    job = new_job(store, items=2, watcher="a")
    assert store.jobs.watch(job, "b")
    assert store.jobs.watch(job, "b")
    store.jobs.advance(job, IMAGE, Stage.FETCH)
    store.jobs.advance(job, IMAGE, Stage.FETCH)
    store.jobs.finish(job, IMAGE, DONE)
    store.jobs.close(job, PartRecord(state=State.CANCELLED))
    expected = [
        ("0.image", State.RUNNING, Stage.FETCH, False),
        ("0.image", State.DONE, None, False),
        ("1.image", State.CANCELLED, None, True),
    ]
    for watcher in ("a", "b"):
        notices = listen_until(store, watcher, 3)
        assert [(n.part, n.state, n.stage, n.job_final) for n in notices] == expected
        assert {notice.job_id for notice in notices} == {job}
        assert store.notices.listen(watcher, 0) == []


def test_listening_ends_in_time(store: Store) -> None:
    started = time.monotonic()
    assert store.notices.listen("nobody", 0.2) == []
    assert 0.15 < time.monotonic() - started < 2


def test_many_notices_are_drained_together(store: Store) -> None:
    store.notices.listen("w", 0)
    job = new_job(store, items=50, watcher="w")
    store.jobs.close(job, PartRecord(state=State.EXPIRED))
    notices = listen_until(store, "w", 50)
    assert len(notices) == 50
    assert [notice.job_final for notice in notices].count(True) == 1
    assert notices[-1].job_final
