"""A fetch worker frozen for longer than its heartbeat, and work handed in twice: one result, counted once."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from epd.contracts.embedding import EmbeddingRef, Entry, Metadata
from epd.contracts.job import PartId, Priority, State
from epd.contracts.media import Modality
from epd.contracts.messages import EncodeMessage, FetchMessage
from epd.store.admissions import Load
from epd.store.values import Completed
from tasks.transport import keys
from tests.integration.line_kit import opened
from tests.integration.pipeline_kit import Line, Site, png, served
from tests.integration.transport_kit import wait_until

IMAGE = Modality.IMAGE
FETCH = ("-Q", "fetch", "-c", "2")


@pytest.fixture
def site() -> Iterator[Site]:
    with served() as server:
        yield server


@pytest.fixture
def line(tmp_path: Path) -> Iterator[Line]:
    """A decode worker; each test starts its fetch workers."""
    with opened(Line, tmp_path) as made:
        made.start("-Q", "decode", "-c", "1", "-n", "decode@%h")
        made.announce()
        yield made


def hold(line: Line, job: str) -> None:
    record = line.view(job).record
    ask = Load(len(record.items), 100)
    assert line.store.admissions.admit(job, ask, priority=Priority.BULK, until=record.deadline)


def end(line: Line, message: EncodeMessage) -> int:
    """What a GPU worker does at the end of an encode, and then with the blob; the parts that it finished."""
    ref = EmbeddingRef(key=message.wanted.key, shape=(2, 4), dtype="float32", nbytes=32)
    metadata = Metadata(
        embedding_key=message.wanted.key, content_digest=message.digest, modality=IMAGE,
        encoder=message.wanted.encoder, dtype="float32", token_count=2, hidden=4,
    )  # fmt: skip
    line.store.embeddings.publish_file(ref, memoryview(bytes(32)), {"key": ref.key})
    part = PartId(message.item.index, IMAGE)
    done = Completed(Entry(ref=ref, metadata=metadata), message.job_id, part, {})
    (finished,) = line.store.flights.complete([done])
    line.store.blobs.free(message.raw.blob)
    return finished


def all_through(line: Line) -> bool:
    """Nothing waits for fetch or decode and nothing is held there, so no further encode message comes."""

    def waiting() -> int:
        return sum(line.broker.client.llen(queue) for queue in ("fetch", "decode"))

    # A message goes from queue to holder to queue: looked at on both sides, it cannot hide in between.
    return waiting() == 0 and line.broker.held() == 0 and waiting() == 0


def names_of(folder: Path) -> list[str]:
    """Names of the blobs, those that are being written included."""
    return [path.name for pattern in ("[!.]*", ".writing/*/*") for path in folder.glob(pattern)]


def check_one_result(line: Line, job: str, messages: list[EncodeMessage]) -> None:
    """However many messages there are for the part, one of them finishes it, and nothing is left."""
    assert {message.wanted.key for message in messages} == {messages[0].wanted.key}
    assert len({line.raw(message).tobytes() for message in messages}) == 1
    assert sum(end(line, message) for message in messages) == 1
    assert line.view(job).state is State.DONE
    assert line.store.admissions.held() == Load(0, 0)
    wait_until(lambda: line.broker.held() == 0, within=15, what="all acked")
    blobs = line.settings.blob_dir
    wait_until(lambda: names_of(blobs) == [], within=10, what=f"no blob is left of {names_of(blobs)}")
    line.store.blobs.sweep(3600)
    assert line.store.blobs.used_bytes() == 0


def test_a_fetch_worker_that_comes_back_from_the_dead(line: Line, site: Site) -> None:
    site.pages["/a.png"] = png((1, 2, 3))
    site.delay = 1.0
    zombie = line.start(*FETCH, "-n", "zombie@%h")
    wait_until(lambda: line.alive("fetch", "decode"), within=40, what="workers up")
    job = line.submit((IMAGE, site.url + "/a.png"))
    hold(line, job)
    wait_until(lambda: line.view(job).state is State.RUNNING, within=20, what="it downloads")
    os.killpg(zombie.pid, signal.SIGSTOP)
    line.start(*FETCH, "-n", "successor@%h")
    frozen_at = time.monotonic()
    first = line.wait_encodes(job, 1)
    alive_again = max(0.0, frozen_at + 6 - time.monotonic())  # longer than every heartbeat
    wait_until(lambda: time.monotonic() > frozen_at + alive_again, within=10, what="dead for long")
    os.killpg(zombie.pid, signal.SIGCONT)
    wait_until(lambda: line.broker.held() == 0, within=20, what="the zombie is through")
    wait_until(lambda: line.broker.client.hlen(keys.SESSIONS) == 3, within=10, what="it is back")
    wait_until(lambda: all_through(line), within=10, what="decoded, the zombie's copy too")
    messages = line.encodes(job)
    assert first[0] in messages
    check_one_result(line, job, messages)


def test_a_chunk_that_is_published_twice(line: Line, site: Site) -> None:
    site.pages["/b.png"] = png((3, 2, 1))
    line.start(*FETCH, "-n", "fetch@%h")
    wait_until(lambda: line.alive("fetch", "decode"), within=40, what="workers up")
    job = line.submit((IMAGE, site.url + "/b.png"))
    hold(line, job)
    record = line.view(job).record
    again = FetchMessage(
        job_id=job, model="demo", priority=record.priority, deadline=record.deadline,
        enqueued_at=time.time(), items=record.items,
    )  # fmt: skip
    line.send("fetch", [again])
    line.wait_encodes(job, 1)
    wait_until(lambda: all_through(line), within=20, what="both are through")
    check_one_result(line, job, line.encodes(job))
