"""The Celery surface without a broker: message options, queue rules, poison, counters, backlog, reaper."""

from __future__ import annotations

import base64
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from types import SimpleNamespace

import pytest
from celery import Celery
from celery.exceptions import Reject
from kombu import Exchange, Queue

from epd.contracts.errors import StoreUnavailable
from epd.contracts.media import Modality
from epd.contracts.messages import EncodeMessage, FetchMessage
from epd.settings import child_environment
from epd.store.values import Claim
from epd.telemetry.counters import Count, Counters
from tasks.celery import app
from tasks.flow.fair_executor import FairExecutor
from tasks.flow.item import ItemRun, pause_of
from tasks.flow.work import Work
from tasks.poison import fail_document
from tasks.publish import task_id
from tasks.queue_depth import lanes, oldest_of
from tasks.queues import leave_encode_out_of_the_default, refuse_other_pools
from tasks.stages import counted, fetch, redo_later
from tasks.worker.background import Reaper
from tests.unit.tasks.flow_kit import Bench, MakeBench, png

IMAGE = Modality.IMAGE


def test_celery_finds_the_application_by_the_package() -> None:
    from celery.app.utils import find_app

    assert find_app("tasks") is app


def test_settings_say_json_late_acks_and_no_results() -> None:
    assert app.conf.accept_content == ["json"]
    assert app.conf.task_acks_late
    assert app.conf.task_reject_on_worker_lost
    assert app.conf.task_ignore_result
    assert app.conf.result_backend is None
    assert app.conf.worker_send_task_events
    assert app.conf.task_send_sent_event


def test_task_events_can_be_turned_off() -> None:
    script = (
        "from tasks.celery import app; c = app.conf; print(c.worker_send_task_events, c.task_send_sent_event)"
    )
    environment = child_environment({"EPD_TASK_EVENTS": "false"})
    shown = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, check=True)
    assert shown.stdout == b"False False\n"


def test_every_queue_has_its_own_exchange_and_key() -> None:
    for queue in app.conf.task_queues:
        assert queue.exchange.name == queue.name == queue.routing_key


def fresh_worker(module: str = "tasks.worker.pool") -> SimpleNamespace:
    own = Celery("own", set_as_current=False)
    own.conf.task_queues = [Queue(name, Exchange(name), name) for name in ("fetch", "decode", "encode")]
    return SimpleNamespace(app=own, pool_cls=SimpleNamespace(__module__=module))


def test_worker_without_queues_leaves_encode_alone() -> None:
    worker = fresh_worker()
    leave_encode_out_of_the_default(worker)
    assert set(worker.app.amqp.queues.consume_from) == {"fetch", "decode"}
    worker.app.amqp.queues.select(["encode"])
    assert set(worker.app.amqp.queues.consume_from) == {"encode"}


@pytest.mark.parametrize(
    ("queues", "module", "refused"),
    [
        (["fetch", "decode"], "tasks.worker.pool", False),
        (["fetch", "decode"], "celery.concurrency.thread", True),
        (["decode"], "gpu_worker.pool.batch_pool", True),
        (["encode"], "tasks.worker.pool", True),
        (["encode"], "gpu_worker.pool.batch_pool", False),
    ],
)
def test_each_queue_has_its_pool(queues: list[str], module: str, refused: bool) -> None:
    worker = fresh_worker(module)
    worker.app.amqp.queues.select(queues)
    with pytest.raises(SystemExit) if refused else nullcontext():
        refuse_other_pools(worker)


def test_task_ids_name_job_stage_item_and_attempt(bench: Bench) -> None:
    message = bench.job((IMAGE, bench.upload(png())))
    assert task_id("fetch", message).startswith(f"{message.job_id}.fetch.0.0.")
    assert task_id("fetch", message) != task_id("fetch", message)


def test_messages_survive_their_trip_as_documents(bench: Bench) -> None:
    bench.fetch(bench.job((IMAGE, bench.upload(png()))))
    bench.decode(bench.outbox.decodes[0])
    (encode,) = bench.outbox.encodes
    document = json.loads(json.dumps(encode.to_document()))
    assert document["version"] == 1
    assert EncodeMessage.model_validate(document) == encode


@pytest.mark.parametrize("stage", ["fetch", "decode", "encode"])
def test_poison_fails_its_item(bench: Bench, stage: str) -> None:
    message = bench.job((IMAGE, bench.upload(png())))
    bench.fetch(message)
    decode = bench.outbox.decodes[0]
    bench.decode(decode)
    document = {"fetch": message, "decode": decode, "encode": bench.outbox.encodes[0]}[stage].to_document()
    for _ in range(2):
        fail_document(bench.context, f"epd.{stage}", document, 4)
    assert bench.code(message, "0.image") == "worker_crashed"
    assert stage != "encode" or bench.files("r") == []


def test_poison_fails_the_waiters_too(bench: Bench) -> None:
    source = bench.upload(png())
    one, two = bench.job((IMAGE, source)), bench.job((IMAGE, source))
    bench.fetch(one)
    bench.fetch(two)
    fail_document(bench.context, "epd.decode", bench.outbox.decodes[0].to_document(), 4)
    assert bench.code(two, "0.image") == "worker_crashed"


@pytest.fixture
def process(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> Bench:
    """The bench as the means of this process."""
    work = Work(bench.context, FairExecutor("download", 1))
    monkeypatch.setattr("tasks.worker.media.process_work", lambda: work)
    return bench


@contextmanager
def delivered(times_before: int) -> Iterator[None]:
    fetch.push_request(epd_deliveries=times_before)
    try:
        yield
    finally:
        fetch.pop_request()


def test_a_chunk_from_a_dead_worker_goes_on_as_single_items(process: Bench) -> None:
    image = Modality.IMAGE
    message = process.job((image, process.upload(png())), (image, process.upload(png())))
    with delivered(1):
        fetch.run(message.to_document())
    assert [len(each.items) for each in process.outbox.fetches] == [1, 1]
    assert {each.items[0].index for each in process.outbox.fetches} == {0, 1}
    assert process.outbox.decodes == []


@pytest.mark.parametrize(("items", "times_before"), [(2, 0), (1, 2)])
def test_a_first_delivery_and_a_single_item_are_fetched(
    process: Bench, items: int, times_before: int
) -> None:
    message = process.job(*[(Modality.IMAGE, process.upload(png()))] * items)
    with delivered(times_before):
        fetch.run(message.to_document())
    assert process.outbox.fetches == []
    assert process.outbox.decodes


def test_redo_publishes_or_gives_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tasks.stages.PAUSE", 0.01)
    trouble, pauses = StoreUnavailable("away"), list[float]()
    redo_later(pauses.append, trouble)
    assert pauses == [0.01]

    def refuse(_: float) -> None:
        raise trouble

    with pytest.raises(Reject):
        redo_later(refuse, trouble)


def test_what_a_task_did_is_counted_and_a_failure_counts_as_one(monkeypatch: pytest.MonkeyPatch) -> None:
    totals = Counters()
    monkeypatch.setattr("tasks.process.TOTALS", totals)
    with counted(Count.FETCH_FAILURES) as tally:
        tally[Count.FETCH_ITEMS] = 3
    with suppress(ValueError), counted(Count.DECODE_FAILURES):
        raise ValueError
    with suppress(Reject), counted(Count.DECODE_FAILURES):
        raise Reject("goes back")
    assert totals.snapshot() == {Count.FETCH_ITEMS: 3, Count.DECODE_FAILURES: 1}


def test_backlog_is_as_old_as_its_oldest_message() -> None:
    def envelope(at: object) -> bytes:
        body = base64.b64encode(b"[]").decode()
        return json.dumps({"headers": {"epd_enqueued_at": at}, "body": body}).encode()

    assert oldest_of([None, envelope(7.0), envelope(5.0), envelope("x"), b"nonsense"]) == 5.0
    assert oldest_of([None]) is None
    assert len(lanes()) == 6


def test_pause_grows_with_the_wait_and_ends_at_the_deadline(bench: Bench) -> None:
    message = bench.job((IMAGE, bench.upload(png())))
    start = message.enqueued_at
    pauses = []
    for waited in (0.0, 4.0, 30.0, 59.0):
        bench.now = start + waited
        pauses.append(pause_of(message, now=bench.now))
    assert pauses[:3] == [pytest.approx(1), pytest.approx(2), pytest.approx(5)]
    assert pauses[3] is None


class TestReaper:
    """Orphaned flights start again; a long queue keeps them waiting."""

    def reaper(self, bench: Bench, queued_since: float | None = None) -> Reaper:
        return Reaper(
            store=bench.store,
            publish=bench.outbox.fetch,
            queued_since=lambda: queued_since,
            lease=bench.settings.flight_lease,
            file_age=100.0,
        )

    def orphan(self, bench: Bench) -> FetchMessage:
        message = bench.job((IMAGE, bench.upload(png())))
        run = ItemRun(bench.context, message, message.items[0])
        waiter = run.waiter(run.main_part)
        assert bench.store.flights.claim("e" * 64, waiter) is Claim.OWNED
        time.sleep(bench.settings.flight_lease * 1.5)
        return message

    def test_orphan_is_published_once(self, make_bench: MakeBench) -> None:
        bench = make_bench(flight_lease=0.05)
        message = self.orphan(bench)
        assert self.reaper(bench).reap(bench.now).flights == 1
        assert bench.outbox.fetches[0].job_id == message.job_id
        assert bench.outbox.fetches[0].attempt == message.attempt

    def test_long_queue_keeps_orphans(self, make_bench: MakeBench) -> None:
        bench = make_bench(flight_lease=0.05)
        self.orphan(bench)
        assert self.reaper(bench, queued_since=bench.now - 1).reap(bench.now).flights == 0
        assert self.reaper(bench, queued_since=bench.now).reap(bench.now).flights == 1

    def test_old_files_are_swept(self, bench: Bench) -> None:
        import os

        bench.upload(png())
        old = bench.settings.blob_dir / "r-old"
        old.write_bytes(b"x")
        os.utime(old, (time.time() - 200,) * 2)
        assert self.reaper(bench).reap(bench.now).files == 1
        assert len(bench.files("m")) == 1
