"""`python -m gpu_worker` on a real server: batches, events, remote control, and a start that fails."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import pytest
import redis

from epd.contracts.job import PartRecord, State
from epd.store import keys
from tests.integration.encode_kit import EncodeLine, parse_events
from tests.integration.line_kit import opened
from tests.integration.transport_kit import wait_until

READER = Path(__file__).parent / "event_reader.py"


@pytest.fixture(scope="module")
def line(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EncodeLine]:
    with opened(EncodeLine, tmp_path_factory.mktemp("encode")) as line:
        line.start()
        yield line


@contextmanager
def event_stream(line: EncodeLine) -> Iterator[IO[str]]:
    """Lines of JSON, one a task event; ends with the test."""
    command = [sys.executable, str(READER)]
    environment = line.process_environment()
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, cwd=line.folder, env=environment
    ) as reader:
        assert reader.stdout is not None
        try:
            yield reader.stdout
        finally:
            reader.kill()


def test_forty_messages_complete_in_batches(line: EncodeLine) -> None:
    before = line.counters()
    messages = line.messages(40, audios=2)
    line.publish(messages)
    view = line.wait_done(messages[0].job_id)
    assert len(view.parts) == 42
    for message in messages:
        (entry,) = line.store.embeddings.lookup([message.wanted.key])
        assert entry is not None
        assert entry.ref.tokens == (1500 if message.wanted.encoder == "ear" else 257)
    line.wait_settled()
    made = before.get("encode_items", 0) + 42
    wait_until(lambda: line.counters().get("encode_items", 0) == made, within=10, what="counters")
    batches = line.counters()["encode_batches"] - before.get("encode_batches", 0)
    assert batches <= 21, "items were not packed"


def test_every_batched_task_sends_its_events(line: EncodeLine) -> None:
    with event_stream(line) as stream:
        assert "listening" in stream.readline()
        messages = line.messages(12)
        line.publish(messages)
        line.wait_done(messages[0].job_id)
        kinds: Counter[str] = Counter()
        while kinds["task-succeeded"] < 12:
            (event,) = parse_events(stream.readline())
            kinds[str(event["type"])] += 1
    assert kinds["task-received"] == kinds["task-started"] == 12


def test_remote_control_answers(line: EncodeLine) -> None:
    assert "pong" in line.celery("inspect", "ping")
    stats = line.celery("inspect", "stats")
    assert "gpu_worker.pool.batch_pool:BatchPool" in stats
    assert '"encoders"' in stats
    for command in ("active", "reserved"):
        assert "OK" in line.celery("inspect", command)
    assert "pool will grow" in line.celery("control", "pool_grow", "1")
    assert "pool will shrink" in line.celery("control", "pool_shrink", "1")


def test_a_cancelled_job_is_acked_and_its_blobs_are_freed(line: EncodeLine) -> None:
    before = line.counters().get("encode_items", 0)
    messages = line.messages(5)
    line.store.jobs.close(messages[0].job_id, PartRecord(state=State.CANCELLED))
    line.publish(messages)
    line.wait_settled()
    assert line.states(messages[0].job_id) == {State.CANCELLED: 5}
    assert line.counters().get("encode_items", 0) == before


def test_a_revoked_task_ends_its_part(line: EncodeLine) -> None:
    """Celery acks a revoked message without running it; its part must not wait for ever."""
    (message,) = line.messages(1)
    assert "OK" in line.celery("control", "revoke", "revoked-before-it-came")
    line.publish([message], task_id="revoked-before-it-came")
    wait_until(lambda: line.states(message.job_id)[State.CANCELLED] == 1, within=20, what="part cancelled")
    line.wait_settled()


def test_cards_come_back_when_the_store_forgot_them(line: EncodeLine) -> None:
    with redis.Redis.from_url(line.settings.store_url) as client:
        assert client.delete(keys.encoder("eye"), keys.encoder("ear")) == 2
    wait_until(lambda: None not in line.store.cards.get(["eye", "ear"]), within=20, what="cards are back")


def test_a_bad_start_names_the_key_and_consumes_nothing(line: EncodeLine) -> None:
    for name, value, said in (
        ("EPD_MAX_BATCH_ITEMS", "0", "EPD_MAX_BATCH_ITEMS='0'"),
        ("EPD_CONFIG", "/nowhere/epd.toml", "/nowhere/epd.toml"),
    ):
        done = subprocess.run(
            [sys.executable, "-m", "gpu_worker"], env=line.process_environment(**{name: value}), check=False,
            capture_output=True, text=True, timeout=60, cwd=line.folder,
        )  # fmt: skip
        assert done.returncode != 0
        assert said in done.stderr
        assert "Traceback" not in done.stderr
