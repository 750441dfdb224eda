"""What only a real server can show: scripts, lost connections, bad records, round trips, key expiry."""

from __future__ import annotations

import logging
import socket
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
import redis

from epd.contracts.errors import NotFound, SettingsError, StoreUnavailable
from epd.contracts.handoff import HandoffRequest, Placement
from epd.contracts.job import PartRecord, Stage, State
from epd.settings import Settings
from epd.store import keys
from epd.store.cache.entry import entry_text
from epd.store.open import Store, open_store
from epd.store.scripts import Script, load_scripts
from epd.store.values import Claim, Completed
from tests.contract.store_values import (
    IMAGE,
    data_of,
    entry_of,
    key_of,
    listen_until,
    new_job,
    part_of,
    put_embedding,
    wait_until,
    waiter_of,
)
from tests.store_kit import leaked_keys

KEY = key_of(1)


@pytest.fixture
def real_store(store_settings: Settings, server: redis.Redis) -> Iterator[Store]:
    store = open_store(store_settings)
    yield store
    store.close()


@pytest.fixture
def silent_port() -> Iterator[int]:
    """A port that accepts connections and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield listener.getsockname()[1]


@pytest.mark.parametrize("script", list(Script))
def test_every_script_compiles_and_names_its_keys(script: Script, server: redis.Redis) -> None:
    text = load_scripts()[script]
    assert server.script_load(text.source) == text.sha
    assert "-- KEYS:" in text.source
    assert "ARGV:" in text.source


def test_scripts_come_back_after_the_server_forgot_them(real_store: Store, server: redis.Redis) -> None:
    job = new_job(real_store)
    server.script_flush()
    assert real_store.flights.claim(KEY, waiter_of(job)) is Claim.OWNED
    server.script_flush()
    entry = entry_of(KEY)
    real_store.embeddings.publish_file(entry.ref, data_of(entry), {})
    assert real_store.flights.complete([Completed(entry, job, IMAGE, {})]) == [1]


def test_two_stores_on_one_server_are_one_world(real_store: Store, store_settings: Settings) -> None:
    other = open_store(store_settings)
    job = new_job(real_store)
    assert other.jobs.advance(job, IMAGE, Stage.FETCH)
    assert real_store.flights.claim(KEY, waiter_of(job)) is Claim.OWNED
    assert other.flights.claim(KEY, waiter_of(new_job(other))) is Claim.WAITING
    other.close()


@pytest.mark.parametrize(
    ("name", "text"),
    [
        (keys.embedding(KEY), "not json"),
        (keys.embedding(KEY), "[]"),
        (keys.embedding(KEY), "{}"),
        (keys.embedding(KEY), entry_text(entry_of(KEY, tokens=5))),
        (keys.embedding(KEY), entry_text(entry_of(KEY)).replace('"n":4', '"n":5')),
        (keys.embedding(KEY), entry_text(entry_of(KEY)).replace('"t":"float32"', '"t":"float64"')),
        (keys.embedding(KEY), entry_text(entry_of(KEY)).replace('"h":8', '"h":8,"of_a_later_version":1')),
    ],
)
def test_a_record_that_disagrees_is_a_logged_miss(
    real_store: Store, server: redis.Redis, caplog: pytest.LogCaptureFixture, name: str, text: str
) -> None:
    put_embedding(real_store, KEY)
    server.set(name, text, keepttl=True)
    with caplog.at_level(logging.WARNING):
        assert real_store.embeddings.lookup([KEY]) == [None]
    assert f"embedding {KEY} is a miss" in caplog.text
    assert server.exists(keys.embedding(KEY)) == 0
    assert real_store.embeddings.stats().nbytes == 0


WRONG_TYPES: list[Callable[[redis.Redis, str], object]] = [
    lambda server, name: server.rpush(name, "a"),
    lambda server, name: server.hset(name, "a", "b"),
    lambda server, name: server.zadd(name, {"a": 1}),
]


@pytest.mark.parametrize("write", WRONG_TYPES)
@pytest.mark.parametrize("known", [False, True])
def test_what_is_no_string_is_a_logged_miss_and_is_replaced(
    real_store: Store,
    server: redis.Redis,
    caplog: pytest.LogCaptureFixture,
    write: Callable[[redis.Redis, str], object],
    known: bool,
) -> None:
    entry, other = entry_of(KEY), put_embedding(real_store, key_of(8)).entry
    if known:
        put_embedding(real_store, KEY)
    server.delete(keys.embedding(KEY))
    write(server, keys.embedding(KEY))
    handoff = HandoffRequest(items=(Placement(key=KEY, offset=0, length=4),))
    with pytest.raises(NotFound):
        real_store.handoffs.put("a", handoff)
    assert real_store.flights.claim(KEY, waiter_of(new_job(real_store))) is Claim.HIT  # looked up then
    assert real_store.embeddings.lookup([KEY, other.ref.key], counted=True, lease=1) == [None, other]
    assert f"embedding {KEY} is a miss" in caplog.text
    assert real_store.flights.claim(KEY, waiter_of(new_job(real_store))) is Claim.OWNED
    put_embedding(real_store, KEY)
    assert real_store.embeddings.lookup([KEY]) == [entry]


def test_a_completed_batch_is_one_round_trip(real_store: Store, server: redis.Redis) -> None:
    entries = [entry_of(key_of(number)) for number in range(20)]
    jobs = [new_job(real_store) for _ in entries]
    for entry, job in zip(entries, jobs, strict=True):
        real_store.flights.claim(entry.ref.key, waiter_of(job))
        real_store.embeddings.publish_file(entry.ref, data_of(entry), {})
    real_store.flights.complete([])
    before = _reads(server)
    batch = [Completed(entry, job, IMAGE, {}) for entry, job in zip(entries, jobs, strict=True)]
    assert real_store.flights.complete(batch) == [1] * 20
    # One read of the pipeline at the server, or a few where the socket splits it; never one an item.
    assert _reads(server) - before < 10


def _reads(server: redis.Redis) -> int:
    return int(server.info("stats")["total_reads_processed"])


def test_after_a_whole_life_only_bounded_keys_and_keys_with_an_end_are_left(
    real_store: Store, server: redis.Redis
) -> None:
    real_store.notices.listen("w", 0.05)
    made, failed, waits = new_job(real_store, watcher="w"), new_job(real_store), new_job(real_store)
    put_embedding(real_store, KEY)
    for number, job in enumerate((made, failed, waits)):
        real_store.flights.claim(key_of(10 + number), waiter_of(job))
    real_store.jobs.finish(failed, IMAGE, PartRecord(state=State.FAILED))
    names = set(server.scan_iter("*"))
    assert all(name.startswith(keys.PREFIX) for name in names)
    assert leaked_keys(server) == []
    ends = {name: server.pttl(name) for name in names if server.pttl(name) > 0}
    assert {keys.job(made), keys.embedding(KEY), keys.flight(key_of(10))} <= set(ends)
    assert ends[keys.job(failed)] <= 3600_000 < ends[keys.job(waits)]


def test_records_of_another_version_are_as_if_not_there(
    real_store: Store, server: redis.Redis, caplog: pytest.LogCaptureFixture
) -> None:
    server.set(keys.encoder("tiny"), '{"colour": "red"}')
    server.set(keys.source("s"), "[]", ex=60)
    server.set(keys.worker("w"), "nonsense", ex=60)
    server.sadd(keys.WORKERS, "w")
    server.expire(keys.WORKERS, 60)
    with caplog.at_level(logging.WARNING):
        assert real_store.cards.get(["tiny"]) == [None]
        assert real_store.sources.get("s") is None
        assert real_store.heartbeats.alive() == []
    assert all(name in caplog.text for name in ("EncoderCard", "SourceMemo", "Heartbeat"))
    job = new_job(real_store)
    server.hset(keys.job(job), f"part:{IMAGE}", '{"state": "resting"}')
    assert part_of(real_store, job).state is State.FAILED
    server.hset(keys.job(job), "record", "{}")
    assert real_store.jobs.view(job) is None


def test_closing_ends_a_listener(real_store: Store, server: redis.Redis) -> None:
    with ThreadPoolExecutor(1) as pool:
        listening = pool.submit(real_store.notices.listen, "w", 5.0)
        wait_until(lambda: server.pubsub_channels(keys.events("w")) != [])
        started = time.monotonic()
        real_store.close()
        assert listening.result(8) == []
        assert time.monotonic() - started < 2
    assert real_store.notices.listen("w", 0.05) == []


@pytest.mark.parametrize("url", ["http://127.0.0.1", "127.0.0.1:6379", "redis://h:port/1", ""])
def test_what_is_no_url_of_a_server_is_a_wrong_setting(store_settings: Settings, url: str) -> None:
    with pytest.raises(SettingsError, match="EPD_STORE_URL"):
        open_store(store_settings.model_copy(update={"store_url": url}))


def test_a_server_that_is_not_there_is_store_unavailable(store_settings: Settings) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    store = open_store(store_settings.model_copy(update={"store_url": f"redis://127.0.0.1:{port}/0"}))
    with pytest.raises(StoreUnavailable):
        store.jobs.view("0" * 32)
    with pytest.raises(StoreUnavailable):
        store.notices.listen("w", 0.1)
    store.close()


def test_a_server_that_does_not_answer_is_store_unavailable_in_time(
    store_settings: Settings, silent_port: int
) -> None:
    url = f"redis://127.0.0.1:{silent_port}/0"
    store = open_store(store_settings.model_copy(update={"store_url": url, "store_timeout": 0.5}))
    started = time.monotonic()
    with pytest.raises(StoreUnavailable):
        store.flights.claim(KEY, waiter_of("0" * 32))
    assert time.monotonic() - started < 3
    store.close()


def test_calls_go_on_after_connections_were_cut(real_store: Store, server: redis.Redis) -> None:
    job = new_job(real_store)
    for _ in range(3):
        server.client_kill_filter(_type="normal", skipme=True)
        assert real_store.jobs.advance(job, IMAGE, Stage.FETCH)


def test_notices_come_again_after_the_subscription_was_cut(real_store: Store, server: redis.Redis) -> None:
    job = new_job(real_store, watcher="w")
    real_store.notices.listen("w", 0.05)
    server.client_kill_filter(_type="pubsub")

    def heard() -> bool:
        real_store.jobs.advance(job, IMAGE, Stage.FETCH)
        real_store.jobs.advance(job, IMAGE, Stage.DECODE)
        try:
            return bool(real_store.notices.listen("w", 0.1))
        except StoreUnavailable:
            return False

    wait_until(heard)


def test_a_notice_that_cannot_be_read_is_skipped(real_store: Store, server: redis.Redis) -> None:
    real_store.notices.listen("w", 0.05)
    server.publish(keys.events("w"), "not json")
    job = new_job(real_store, watcher="w")
    real_store.jobs.advance(job, IMAGE, Stage.FETCH)
    assert [notice.job_id for notice in listen_until(real_store, "w", 1)] == [job]


def test_the_waiters_of_a_flight_live_as_long_as_their_job(real_store: Store, server: redis.Redis) -> None:
    long_job, short_job = new_job(real_store, deadline=5000), new_job(real_store, deadline=5)
    real_store.flights.claim(KEY, waiter_of(long_job))
    real_store.flights.claim(KEY, waiter_of(short_job))
    assert server.ttl(keys.flight(KEY) + keys.WAITERS_SUFFIX) > 5000
    assert part_of(real_store, short_job).state is State.QUEUED


def test_watchers_of_a_job_are_bounded(real_store: Store, server: redis.Redis) -> None:
    job = new_job(real_store)
    for number in range(100):
        assert real_store.jobs.watch(job, f"w{number}")
    watchers = server.hget(keys.job(job), "watchers")
    assert isinstance(watchers, str)
    assert watchers.count(",") == 31
    assert '"w99"' in watchers
