"""Fetch and decode as real workers on a real server: items reach the encode queue with the right bytes."""

from __future__ import annotations

import io
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import psutil
import pytest
import redis
from PIL import Image

from epd.contracts.job import State
from epd.contracts.media import Modality, RawAudio, RawFrames, RawImage
from epd.telemetry.counters import Count
from tests.integration.line_kit import opened
from tests.integration.pipeline_kit import Line, Site, make_video, png, served
from tests.integration.transport_kit import Broker, wait_until

IMAGE, VIDEO = Modality.IMAGE, Modality.VIDEO


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    with served() as server:
        yield server


@pytest.fixture(scope="module")
def line(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Line]:
    """One fetch worker and one decode worker with two children, both up, and both encoders announced."""
    with opened(Line, tmp_path_factory.mktemp("line")) as made:
        made.start_both(fetch=4, decode=2)
        yield made


@pytest.fixture(autouse=True)
def _empty_encode_queue(line: Line) -> Iterator[None]:
    yield
    with redis.Redis.from_url(line.broker.url) as client:
        client.delete("encode")


def test_a_chunk_of_all_kinds(line: Line, site: Site, tmp_path: Path) -> None:
    site.pages["/red.png"] = png((255, 0, 0))
    site.pages["/loud.mp4"] = make_video(tmp_path / "loud.mp4", audio=True)
    job = line.submit(
        (IMAGE, site.url + "/red.png"), (VIDEO, site.url + "/loud.mp4"), (IMAGE, site.url + "/no")
    )
    messages = {(m.item.index, m.wanted.track): m for m in line.wait_encodes(job, 3)}
    image, frames, audio = messages[0, IMAGE], messages[1, VIDEO], messages[1, Modality.AUDIO]
    assert isinstance(image.raw, RawImage)
    assert (line.raw(image).reshape(6, 8, 3) == (255, 0, 0)).all()
    assert isinstance(frames.raw, RawFrames)
    assert line.raw(frames).size == frames.raw.frames * 48 * 64 * 3
    assert frames.audio is not None
    assert frames.audio.present
    assert isinstance(audio.raw, RawAudio)
    assert np.abs(line.raw(audio).view(np.float32)).max() > 0.05
    parts = line.view(job).parts
    assert set(parts) == {"0.image", "1.video", "1.audio", "2.image"}
    assert parts["2.image"].state is State.FAILED
    wait_until(lambda: not list(line.settings.blob_dir.glob("s-*")), within=10, what="sources freed")


def test_same_content_is_decoded_once(line: Line, site: Site) -> None:
    site.pages["/twin1.png"] = site.pages["/twin2.png"] = png((9, 9, 9))
    one = line.submit((IMAGE, site.url + "/twin1.png"))
    line.wait_encodes(one, 1)
    two = line.submit((IMAGE, site.url + "/twin2.png"))
    wait_until(lambda: site.bodies("/twin2.png") == 1, within=20, what="second download")
    wait_until(lambda: not list(line.settings.blob_dir.glob("s-*")), within=10, what="its bytes freed")
    assert line.encodes(two) == []
    assert line.view(two).parts["0.image"].state is State.RUNNING


def test_lost_encode_message_is_made_again(line: Line, site: Site) -> None:
    site.pages["/lost.png"] = png((4, 5, 6))
    job = line.submit((IMAGE, site.url + "/lost.png"))
    line.wait_encodes(job, 1)
    with redis.Redis.from_url(line.broker.url) as client:
        client.delete("encode")

        def made_again() -> bool:
            # A queue that nobody empties would keep the reaper waiting, so what other tests left goes.
            return bool(line.encodes(job)) or client.delete("encode") < 0

        wait_until(made_again, within=25, what="the lost message made again")


def test_killed_decode_children_lose_nothing(line: Line, site: Site) -> None:
    noise = np.random.default_rng(1)
    for index in range(10):
        file = io.BytesIO()
        Image.fromarray(noise.integers(0, 255, (1200, 1600, 3), np.uint8)).save(file, "JPEG")
        site.pages[f"/noise{index}.jpg"] = file.getvalue()
    decode = psutil.Process(line.processes[1].pid)
    job = line.submit(*[(IMAGE, f"{site.url}/noise{index}.jpg") for index in range(10)])
    for seen in (1, 4):
        wait_until(lambda count=seen: len(line.encodes(job)) >= count, within=30, what="some encodes")
        os.kill(decode.children()[0].pid, signal.SIGKILL)
    wait_until(lambda: len({m.item.index for m in line.encodes(job)}) == 10, within=40, what="all encodes")
    states = {part.state for part in line.view(job).parts.values()}
    assert states == {State.RUNNING}


def test_remote_control_answers(line: Line) -> None:
    for command in ("ping", "stats", "active"):
        answer = line.celery("inspect", command)
        assert "fetch@" in answer
        assert "decode@" in answer
        assert "2 nodes online" in answer


def test_heartbeats_carry_counters(line: Line, site: Site) -> None:
    site.pages["/count.png"] = png((7, 7, 8))
    line.wait_encodes(line.submit((IMAGE, site.url + "/count.png")), 1)

    def counters(kind: str) -> dict[str, float]:
        return next(beat.counters for beat in line.store.heartbeats.alive() if beat.kind == kind)

    wait_until(lambda: counters("fetch").get(Count.FETCH_ITEMS, 0) >= 1, within=10, what="fetch counters")
    wait_until(lambda: counters("decode").get(Count.DECODE_ITEMS, 0) >= 1, within=10, what="decode counters")


def test_ordinary_worker_refuses_the_encode_queue(line: Line) -> None:
    process = line.start("-Q", "encode", "-P", "solo", "-n", "wrong@%h")
    assert process.wait(30) != 0
    assert "python -m gpu_worker" in (line.folder / "worker.log").read_text()


def test_plain_worker_takes_both_queues_and_waits_for_encoders(tmp_path: Path, site: Site) -> None:
    broker = Broker(tmp_path)
    broker.start()
    own = Line(broker, tmp_path)
    try:
        process = own.start("-c", "2", "-n", "plain@%h")
        wait_until(lambda: own.alive("fetch", "decode"), within=40, what="worker up")
        site.pages["/early.png"] = png((3, 2, 1))
        job = own.submit((IMAGE, site.url + "/early.png"))
        time.sleep(1.5)
        assert own.encodes(job) == []
        own.announce()
        assert own.wait_encodes(job, 1)[0].item.index == 0
        process.send_signal(signal.SIGTERM)
        assert process.wait(15) == 0
        assert not own.alive("fetch")
    finally:
        own.close()
        broker.close()
