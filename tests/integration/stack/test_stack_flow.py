"""The main job, end to end: media of every type, the cache, events, ranges, and what watches it."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable

import httpx
import numpy as np
import pytest
from test_stack_at_once import some_jpeg

from demo.results import transcribe, word_error_rate
from demo.scenes import encoded_so_far
from epd.client import Client
from epd.contracts.job import State
from epd.contracts.media import Modality
from epd.contracts.responses import JobAnswer
from epd.settings import child_environment
from epd.stack.stack import Stack
from tests.paths import MEDIA, WEIGHTS

REFERENCES: dict[str, str] = json.loads((MEDIA / "REFERENCES.json").read_text(encoding="utf-8"))
VIDEO = MEDIA / "launch.mp4"
PHOTO = MEDIA / "cat.jpg"
CANCELLED_ITEMS = 48


@pytest.fixture(scope="module")
def mixed(stack: Stack) -> JobAnswer:
    """One job with an image, a video with audio, and an audio clip."""
    with Client(stack.api_url) as client:
        return client.encode([PHOTO, VIDEO, MEDIA / "speech.ogg"])


def test_every_type_is_encoded_in_order(mixed: JobAnswer) -> None:
    assert mixed.state is State.DONE, [item.error for item in mixed.items]
    assert [item.type for item in mixed.items] == [Modality.IMAGE, Modality.VIDEO, Modality.AUDIO]
    image, video, audio = mixed.items
    assert image.embedding is not None
    assert image.embedding.shape == (257, 384)
    assert [track.type for track in video.tracks] == [Modality.AUDIO]
    assert audio.embedding is not None
    assert audio.embedding.shape == (1500, 384)
    total = mixed.usage.image_tokens + mixed.usage.video_tokens + mixed.usage.audio_tokens
    assert mixed.usage.total_tokens == total
    assert mixed.usage.audio_tokens == 3000


def test_the_words_of_a_videos_audio_come_out(client: Client, mixed: JobAnswer) -> None:
    track = mixed.items[1].tracks[0]
    assert track.embedding is not None
    said = transcribe(client.embedding(track.embedding.key), WEIGHTS / "whisper-tiny.en")
    assert word_error_rate(REFERENCES[VIDEO.name], said) <= 0.1, said


def test_the_second_time_everything_is_cached(client: Client, mixed: JobAnswer) -> None:
    before = encoded_so_far(client)
    assert before.items >= 4
    again = client.encode([PHOTO, VIDEO, MEDIA / "speech.ogg"])
    assert all(item.cached for item in again.items)
    assert all(track.cached for track in again.items[1].tracks)
    assert [item.embedding for item in again.items] == [item.embedding for item in mixed.items]
    assert encoded_so_far(client) == before


def test_ranges_and_formats_give_the_same_rows(stack: Stack, client: Client, mixed: JobAnswer) -> None:
    embedding = mixed.items[0].embedding
    assert embedding is not None
    whole = client.embedding(embedding.key)
    assert np.array_equal(client.embedding(embedding.key, 10, 20), whole[10:20])
    raw = httpx.get(stack.api_url + embedding.url, params={"format": "raw"})
    assert np.array_equal(np.frombuffer(raw.content, "<f4").reshape(embedding.shape), whole)
    assert client.metadata(embedding.key) == mixed.items[0].metadata


def test_one_bad_item_fails_alone(client: Client) -> None:
    broken = (MEDIA / "launch.mp4").read_bytes()[:2000]
    job = client.encode(
        [PHOTO, {"type": "image", "data": b"not a picture"}, {"type": "video", "data": broken}]
    )
    assert job.state is State.PARTIAL
    assert job.items[0].state is State.DONE
    errors = [item.error.code for item in job.items[1:] if item.error]
    assert errors == ["unsupported_media", "corrupt_media"]


def test_loopback_urls_are_refused_unless_allowed(client: Client) -> None:
    item = client.encode([{"type": "image", "url": "http://127.0.0.1:9/x.png"}]).items[0]
    assert item.error is not None
    assert item.error.code == "source_refused"


def test_events_end_with_the_job(client: Client) -> None:
    job = client.submit([{"type": "image", "data": PHOTO.read_bytes()}], model="tiny")
    events = list(client.events(job.job_id))
    assert events[-1].state is State.DONE
    assert events[-1].job_state is State.DONE


def test_a_job_can_be_cancelled(client: Client) -> None:
    """Many images through the slow encoder, so that most of them still wait when the job is cancelled."""
    items = [{"type": "image", "data": some_jpeg(20_000 + number)} for number in range(CANCELLED_ITEMS)]
    job = client.submit(items, model="slow")
    cancelled = client.cancel(job.job_id)
    states = [item.state for item in cancelled.items]
    assert State.CANCELLED in states
    assert set(states) <= {State.CANCELLED, State.DONE}
    # What was on its way is dropped: nothing of the job stays in a queue, and nothing changes any more.
    wait_until(lambda: all(not (queue.waiting or queue.unacked) for queue in client.status().queues))
    assert [item.state for item in client.job(job.job_id).items] == states


@pytest.mark.parametrize("command", ["ping", "stats", "active"])
def test_every_worker_answers_celery_inspect(stack: Stack, command: str) -> None:
    argv = [sys.executable, "-m", "celery", "-A", "tasks", "inspect", command, "--timeout", "5", "--json"]
    run = subprocess.run(
        argv, env=child_environment(stack.settings), capture_output=True, text=True, timeout=60, check=True
    )
    answers = json.loads(run.stdout)
    assert {name.split("@")[0] for name in answers} == {"fetch", "decode", "gpu"}


def test_flower_lists_every_worker_and_task(stack: Stack, client: Client) -> None:
    assert stack.flower_url is not None
    client.encode([{"type": "image", "data": (MEDIA / "rocket.jpg").read_bytes()}], model="tiny")
    wait_until(lambda: flower_workers(stack) >= {"fetch", "decode", "gpu"})
    page = flower_tasks(stack)
    for name in ("epd.fetch", "epd.decode", "epd.encode"):
        wait_until(lambda name=name: f"{name}:SUCCESS" in page())


def flower_workers(stack: Stack) -> set[str]:
    rows = httpx.get(f"{stack.flower_url}/workers", params={"json": "1"}).json()["data"]
    return {row["hostname"].split("@")[0] for row in rows}


def flower_tasks(stack: Stack) -> Callable[[], set[str]]:
    """Names and states of the tasks, from the table that Flower's own page reads."""
    form = {"draw": "1", "start": "0", "length": "500", "search[value]": "", "order[0][column]": "0"}
    form |= {"order[0][dir]": "asc", "columns[0][data]": "name"}

    def read() -> set[str]:
        rows = httpx.post(f"{stack.flower_url}/tasks/datatable", data=form).json()["data"]
        return {f"{row['name']}:{row['state']}" for row in rows}

    return read


def wait_until(condition: Callable[[], bool], timeout: float = 30) -> None:
    end = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.1)
