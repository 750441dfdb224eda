"""The encode worker while its server forgets, restarts, freezes or is full: work goes on afterwards."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator

import pytest
import redis

from epd.contracts.errors import StoreUnavailable
from epd.contracts.job import State
from epd.contracts.messages import EncodeMessage
from epd.store import keys
from tests.integration.encode_kit import EncodeLine
from tests.integration.line_kit import opened
from tests.integration.transport_kit import wait_until

#: In how many seconds a worker has to consume again after the trouble.
AGAIN_S = 10.0


@pytest.fixture(scope="module")
def line(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EncodeLine]:
    with opened(EncodeLine, tmp_path_factory.mktemp("trouble"), persistent=True) as line:
        line.start(EPD_STORE_TIMEOUT="2")
        yield line


@pytest.fixture
def store_client(line: EncodeLine) -> Iterator[redis.Redis]:
    with redis.Redis.from_url(line.settings.store_url, decode_responses=True) as client:
        yield client


def finish_a_job(line: EncodeLine, count: int = 4, *, within: float = AGAIN_S) -> None:
    """The worker takes new work and ends it."""
    messages = line.messages(count)
    line.publish(messages)
    line.wait_done(messages[0].job_id, within=within)
    line.wait_settled()


def the_worker(line: EncodeLine) -> int:
    """Its process id; the worker must be the one that was started."""
    process = line.processes[0]
    assert process.poll() is None, "the worker died"
    return process.pid


def hold(line: EncodeLine) -> list[EncodeMessage]:
    """Messages that are queued while the worker is frozen."""
    messages = line.messages(12)
    line.processes[0].send_signal(signal.SIGSTOP)
    line.publish(messages)
    return messages


def test_a_store_that_forgot_everything_costs_its_jobs_and_nothing_else(
    line: EncodeLine, store_client: redis.Redis
) -> None:
    messages = hold(line)
    store_client.flushdb()
    line.processes[0].send_signal(signal.SIGCONT)
    line.wait_settled(within=AGAIN_S)
    assert line.store.jobs.view(messages[0].job_id) is None
    assert not store_client.exists(keys.job(messages[0].job_id)), "a record without its job was made"
    start = time.monotonic()
    wait_until(lambda: None not in line.store.cards.get(["eye", "ear"]), within=5, what="cards are back")
    wait_until(lambda: line.is_ready(the_worker(line)), within=5, what="heartbeat is back")
    assert time.monotonic() - start < 5
    finish_a_job(line)


def test_a_flight_that_was_forgotten_still_ends_in_its_result(
    line: EncodeLine, store_client: redis.Redis
) -> None:
    messages = hold(line)
    for message in messages:
        flight = keys.flight(message.wanted.key)
        store_client.delete(flight, flight + keys.WAITERS_SUFFIX)
    line.processes[0].send_signal(signal.SIGCONT)
    line.wait_done(messages[0].job_id)
    line.wait_settled()


def test_an_entry_that_was_lost_is_a_miss(line: EncodeLine, store_client: redis.Redis) -> None:
    messages = line.messages(2)
    line.publish(messages)
    line.wait_done(messages[0].job_id)
    lost, kept = (message.wanted.key for message in messages)
    store_client.delete(keys.embedding(lost))
    found = line.store.embeddings.lookup([lost, kept])
    assert found[0] is None
    assert found[1] is not None


def test_a_server_that_restarts_with_its_data_loses_no_item(line: EncodeLine) -> None:
    messages = hold(line)
    line.broker.stop()
    line.broker.start()
    line.processes[0].send_signal(signal.SIGCONT)
    line.wait_done(messages[0].job_id, within=AGAIN_S + 5)
    line.wait_settled()
    wait_until(lambda: line.is_ready(the_worker(line)), within=5, what="heartbeat is back")


def test_a_server_that_does_not_answer_for_a_while_is_waited_for(line: EncodeLine) -> None:
    """Half-open to its clients: connections stand, and nothing comes back on them."""
    messages = hold(line)
    line.broker.process.send_signal(signal.SIGSTOP)
    line.processes[0].send_signal(signal.SIGCONT)
    time.sleep(8)  # longer than each time limit of store and transport
    line.broker.process.send_signal(signal.SIGCONT)
    line.wait_done(messages[0].job_id, within=AGAIN_S + 5)
    line.wait_settled()
    the_worker(line)


def test_connections_that_are_cut_again_and_again_lose_no_item(line: EncodeLine) -> None:
    messages = line.messages(40)
    line.publish(messages)
    for _ in range(5):
        for kind in ("normal", "pubsub"):
            line.broker.client.client_kill_filter(_type=kind, skipme=True)
        time.sleep(0.3)
    line.wait_done(messages[0].job_id, within=30)
    line.wait_settled(within=AGAIN_S + 5)
    the_worker(line)


def test_a_full_server_delays_results_and_falsifies_none(line: EncodeLine, store_client: redis.Redis) -> None:
    messages = hold(line)
    store_client.config_set("maxmemory", 1)
    try:
        line.processes[0].send_signal(signal.SIGCONT)
        time.sleep(4)
        assert State.DONE not in line.states(messages[0].job_id)
        assert State.FAILED not in line.states(messages[0].job_id)
        with pytest.raises(StoreUnavailable):
            line.store.embeddings.lookup([messages[0].wanted.key])
    finally:
        store_client.config_set("maxmemory", 0)
    line.wait_done(messages[0].job_id, within=AGAIN_S)
    line.wait_settled()
    finish_a_job(line)
