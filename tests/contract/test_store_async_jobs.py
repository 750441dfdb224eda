"""Jobs on an event loop: admitted and written in one round trip, and read as the blocking call reads them."""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import AsyncIterator

import pytest
import redis

from epd.contracts.errors import StoreUnavailable
from epd.contracts.job import Notice, PartId, PartRecord, Stage, State
from epd.contracts.media import Modality
from epd.store import keys
from epd.store.admissions import Load
from epd.store.open import Store
from epd.store.scripts import Script, load_scripts
from tests.contract.store_values import IMAGE, job_record, listen_until
from tests.store_kit import MakeStore

QUEUED = {IMAGE: PartRecord(), PartId(1, Modality.IMAGE): PartRecord()}


@pytest.fixture
async def jobs(make_store: MakeStore) -> AsyncIterator[Store]:
    """A store that admits three items."""
    store = make_store(max_queue_items=3)
    yield store
    await store.async_cache.close()


async def start(store: Store, *, waiter: str | None = None, watcher: str | None = None) -> tuple[str, bool]:
    """Start a job of two items; its id, and whether it was admitted."""
    record = job_record(uuid.uuid4().hex, items=2)
    until = record.deadline + 60
    admitted = await store.async_jobs.start(
        record, QUEUED, load=Load(2, 10), until=until, waiter=waiter, watcher=watcher
    )
    return record.job_id, admitted


async def test_a_job_is_admitted_and_written(jobs: Store) -> None:
    job, admitted = await start(jobs)
    assert admitted
    assert jobs.admissions.held() == Load(2, 10)
    view = jobs.jobs.view(job)
    assert view is not None
    assert view == await jobs.async_jobs.view(job) == await jobs.async_jobs.view(job, view.record)


async def test_a_job_that_does_not_fit_is_not_written(jobs: Store) -> None:
    await start(jobs)
    refused, admitted = await start(jobs)
    assert not admitted
    assert jobs.admissions.held() == Load(2, 10)
    assert jobs.jobs.view(refused) is None
    assert await jobs.async_jobs.view(refused, job_record(refused)) is None


async def test_a_start_after_a_lost_answer_changes_nothing(jobs: Store) -> None:
    record = job_record(uuid.uuid4().hex, items=2)
    for _ in range(2):
        until = record.deadline + 60
        assert await jobs.async_jobs.start(record, QUEUED, load=Load(2, 10), until=until)
    assert jobs.admissions.held() == Load(2, 10)


async def test_a_server_without_the_script_of_admission_starts_the_job_too(
    jobs: Store, server: redis.Redis
) -> None:
    """The commands that are repeated once it is loaded run after the others."""
    server.script_flush()
    server.script_load(load_scripts()[Script.JOB_CREATE].source)
    job, admitted = await start(jobs)
    assert admitted
    assert jobs.jobs.view(job) is not None


async def test_a_waiter_is_notified_of_the_end_alone(jobs: Store) -> None:
    jobs.notices.listen("w", 0)
    job, _ = await start(jobs, waiter="w")
    jobs.jobs.advance(job, IMAGE, Stage.FETCH)
    jobs.jobs.close(job, PartRecord(state=State.CANCELLED))
    (notice,) = await asyncio.to_thread(listen_until, jobs, "w", 1)
    assert (notice.job_id, notice.job_final) == (job, True)
    assert await asyncio.to_thread(jobs.notices.listen, "w", 0.05) == []


async def test_a_waiter_that_watches_too_is_notified_of_each_change_once(jobs: Store) -> None:
    jobs.notices.listen("w", 0)
    job, _ = await start(jobs, waiter="w")
    assert jobs.jobs.watch(job, "w")
    jobs.jobs.advance(job, IMAGE, Stage.FETCH)
    jobs.jobs.close(job, PartRecord(state=State.CANCELLED))
    notices = await asyncio.to_thread(listen_until, jobs, "w", 3)
    assert [notice.job_final for notice in notices] == [False, False, True]
    assert await asyncio.to_thread(jobs.notices.listen, "w", 0.05) == []


async def test_notices_are_followed_on_the_loop_until_the_subscription_breaks(
    jobs: Store, server: redis.Redis
) -> None:
    heard: asyncio.Queue[Notice] = asyncio.Queue()
    opened = asyncio.Event()
    following = asyncio.create_task(jobs.notices.follow("w", heard.put_nowait, opened.set))
    async with asyncio.timeout(10):
        await opened.wait()
        server.publish(keys.events("w"), "not a notice")
        job, _ = await start(jobs, watcher="w")
        jobs.jobs.advance(job, IMAGE, Stage.FETCH)
        notice = await heard.get()
        assert (notice.job_id, notice.part, notice.stage) == (job, "0.image", Stage.FETCH)
        server.client_kill_filter(_type="pubsub")
        with pytest.raises(StoreUnavailable):
            await following


async def test_following_ends_when_it_is_cancelled(jobs: Store, server: redis.Redis) -> None:
    opened = asyncio.Event()
    following = asyncio.create_task(jobs.notices.follow("w", lambda _: None, opened.set))
    async with asyncio.timeout(10):
        await opened.wait()
        assert server.pubsub_numsub(keys.events("w")) == [(keys.events("w"), 1)]
        following.cancel()
        await asyncio.wait([following])
        while server.pubsub_numsub(keys.events("w")) != [(keys.events("w"), 0)]:
            await asyncio.sleep(0.01)


def test_watchers_are_a_list_and_the_waiter_is_a_name(store: Store, server: redis.Redis) -> None:
    async def write() -> str:
        job, _ = await start(store, waiter="a", watcher="b")
        await store.async_cache.close()
        return job

    job = asyncio.run(write())
    assert json.loads(server.hget(keys.job(job), "watchers")) == ["b"]
    assert server.hget(keys.job(job), "waiter") == "a"
