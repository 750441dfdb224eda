"""The demo's table, samples, photo server and scores, and its search for leftovers."""

from __future__ import annotations

import os
import subprocess
import sys
from io import StringIO
from pathlib import Path

import httpx
import numpy as np
import pytest
from rich.console import Console

from demo import leftovers
from demo.leftovers import Leftovers, shm_names
from demo.results import cosine, job_table, rank, transcribe, word_error_rate
from demo.samples import MEDIA, demo_samples, reference_texts, served_photo
from demo.scenes import Encoded, summed
from epd.cli.tables import TIME_COLUMNS
from epd.contracts import timings
from epd.contracts.job import ErrorInfo, State
from epd.contracts.media import Modality
from epd.contracts.responses import EmbeddingAnswer, ItemAnswer, JobAnswer, PartAnswer, Usage, WorkerAnswer

KEY = "a" * 64


def _embedding(tokens: int) -> EmbeddingAnswer:
    return EmbeddingAnswer(
        key=KEY, shape=(tokens, 384), dtype="float32", nbytes=1, url=f"/v1/embeddings/{KEY}"
    )


def _text(job: JobAnswer) -> str:
    console = Console(file=StringIO(), width=80)
    console.print(job_table(job, title="t"))
    return console.file.getvalue()  # type: ignore[attr-defined]


def test_the_table_shows_items_tracks_and_failures() -> None:
    track = PartAnswer(type=Modality.AUDIO, state=State.DONE, cached=True, embedding=_embedding(1500))
    video = ItemAnswer(
        index=0,
        id="clip",
        type=Modality.VIDEO,
        state=State.DONE,
        embedding=_embedding(2056),
        tracks=(track,),
        timings={"forward": 0.25, "preprocess": 0.05, "fetch": 0.001, "fetch_queue": 1.0},
    )
    error = ErrorInfo(code="corrupt_media", message="m", retryable=False)
    broken = ItemAnswer(index=1, type=Modality.IMAGE, state=State.FAILED, error=error)
    job = JobAnswer(job_id="j", model="m", state=State.PARTIAL, items=(video, broken), usage=Usage())
    rows = {row.split()[0]: row.split() for row in _text(job).splitlines() if row.strip()}
    assert rows["clip"] == ["clip", "video", "2056", "2056x384", "no", "1", "-", "300", "-", "1000"]
    assert rows["audio"] == ["audio", "track", "audio", "1500", "1500x384", "yes", *"-----"]
    assert rows["#1"][:4] == ["#1", "image", "-", "failed"]
    assert max(map(len, _text(job).splitlines())) <= 80


def test_every_stage_time_has_a_column() -> None:
    stages = [timings.FETCH_QUEUE, timings.FETCH, timings.DECODE_QUEUE, timings.DECODE, timings.ENCODE_QUEUE]
    stages += [timings.STAGE, timings.PREPROCESS, timings.FORWARD, timings.WRITE]
    assert sorted(stage for shown in TIME_COLUMNS.values() for stage in shown) == sorted(stages)


def test_samples_exist_and_have_their_words() -> None:
    samples = demo_samples("http://127.0.0.1:1")
    assert [s.type for s in samples].count("image") >= 5
    assert all(Path(s.source).is_file() for s in samples if not s.source.startswith("http"))
    assert samples[-1].as_item().keys() == {"id", "type", "path"}
    assert set(reference_texts()) == {"launch.mp4", "speech.ogg"}
    assert sum(path.stat().st_size for path in MEDIA.iterdir()) < 2_000_000


def test_the_photo_server_serves_one_photo_and_revalidates() -> None:
    photo = MEDIA / "cat.jpg"
    with served_photo(photo) as url, httpx.Client(trust_env=False) as http:
        answer = http.get(f"{url}/cat.jpg")
        assert answer.content == photo.read_bytes()
        assert (
            http.get(f"{url}/cat.jpg", headers={"If-None-Match": answer.headers["ETag"]}).status_code == 304
        )
        assert http.get(f"{url}/other.jpg").status_code == 404
    with httpx.Client(trust_env=False) as http, pytest.raises(httpx.ConnectError):
        http.get(f"{url}/cat.jpg")


def test_a_process_of_the_stack_is_found_until_it_ends() -> None:
    traces = Leftovers({"EPD_BLOB_DIR": "/nowhere/demo-test"}, before=shm_names())
    command = [sys.executable, "-c", "input()"]
    child = subprocess.Popen(command, env={"EPD_BLOB_DIR": "/nowhere/demo-test"}, stdin=subprocess.PIPE)
    try:
        assert [text for text in traces.found(within=0) if f"process {child.pid} " in text]
    finally:
        child.communicate(b"\n", timeout=20)
    assert [text for text in traces.found(within=5) if "process" in text] == []


def test_files_of_other_programs_are_not_left_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leftovers, "SHM", tmp_path)
    traces = Leftovers({"EPD_BLOB_DIR": "/nowhere/demo-test"}, before=shm_names())
    for name in ("epd-ceiling-x1", "epd-1-x1"):
        (tmp_path / name).mkdir()
    with (tmp_path / ".org.browser.X1").open("wb"):
        assert traces.found(within=0) == []
    (tmp_path / f"epd-{os.getpid()}-x1").mkdir()
    left = [".org.browser.X1", f"epd-{os.getpid()}-x1"]  # nobody uses the first any more: it may be ours
    assert traces.found(within=0) == [f"file {tmp_path / name}" for name in left]


def test_batches_are_summed_over_workers_and_encoders() -> None:
    def worker(name: str, **counters: float) -> WorkerAnswer:
        counted = {key.replace("__", "/"): value for key, value in counters.items()}
        return WorkerAnswer(name=name, kind="encode", host="h", pid=1, ready=True, age=0, counters=counted)

    one = worker("a", encode_batches__x=2, encode_items__x=9, encode_batches__y=1, encode_items__y=1)
    two = worker("b", encode_batches__x=3, encode_items__x=4, encode_batch_peak__x=4, later_counter=7)
    assert summed([one, two]) == Encoded(batches=6, items=14)
    assert summed([]) == Encoded(batches=0, items=0)


@pytest.mark.parametrize(
    ("reference", "said", "rate"),
    [
        ("Mr. John came.", "mister john came", 0.0),
        ("ill-disposed", "Ill disposed!", 0.0),
        ("one two three four", "one three four", 0.25),
        ("one two three four", "one two too three four", 0.25),
        ("one two three four", "one two three five", 0.25),
        ("one", "", 1.0),
        ("one", "a b c", 3.0),
    ],
)
def test_word_error_rate(reference: str, said: str, rate: float) -> None:
    assert word_error_rate(reference, said) == pytest.approx(rate)


def test_a_reference_without_words_is_refused() -> None:
    with pytest.raises(ValueError, match="no word"):
        word_error_rate("...", "hello")


def test_part_of_a_window_is_refused() -> None:
    from pathlib import Path

    with pytest.raises(ValueError, match="1499 rows"):
        transcribe(np.zeros((1499, 4), np.float32), Path("nowhere"))


def test_rank_puts_the_nearest_first() -> None:
    query = np.array([[1.0, 0.0], [9.0, 9.0]])
    others = {"far": np.array([[-1.0, 0.1]]), "near": np.array([[2.0, 0.1]]), "side": np.array([[0.0, 3.0]])}
    assert [name for name, _ in rank(query, others)] == ["near", "side", "far"]


def test_cosine_ignores_length_and_survives_zero() -> None:
    assert cosine(np.array([3.0, 4.0]), np.array([0.6, 0.8])) == pytest.approx(1.0)
    assert cosine(np.zeros(2), np.ones(2)) == 0.0
