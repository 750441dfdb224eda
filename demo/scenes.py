"""The scenes of the demo: encode, nearest photo, transcripts, encode again. Each checks its result."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from demo.results import item_name, job_table, named_parts, rank, transcribe, word_error_rate
from demo.samples import AUDIO, CLIP, QUERY, Sample, reference_texts
from epd.client.blocking import Client
from epd.contracts.errors import EpdError
from epd.contracts.job import FINAL_STATES, State
from epd.contracts.media import Modality
from epd.contracts.responses import EmbeddingAnswer, ItemAnswer, JobAnswer, PartAnswer, WorkerAnswer
from epd.telemetry.counters import Count, split_counter_key

MAX_WORD_ERROR_RATE = 0.10

#: Seconds for a job.
DEADLINE = 300.0
EXPECTED_NEAREST = "cat.jpg"

#: Seconds between two looks for new heartbeats, and the longest wait for them.
HEARTBEAT_POLL = 0.2
HEARTBEAT_LIMIT = 15.0


def encode_all(client: Client, samples: list[Sample], console: Console) -> JobAnswer:
    """The first run: shows a progress bar by item, and a table."""
    start = time.monotonic()
    job = client.submit([sample.as_item() for sample in samples], deadline=DEADLINE)
    with _progress(console) as bar:
        task = bar.add_task("encoding", total=len(samples))
        finished = set()
        for event in client.events(job.job_id):
            if event.state in FINAL_STATES:
                finished.add(event.index)
            bar.update(task, completed=len(finished))
    job = client.wait(job.job_id, DEADLINE)
    seconds = time.monotonic() - start
    console.print(
        job_table(job, title=f"First run: {len(samples)} items in {seconds:.2f} s, uploads included")
    )
    require_done(job)
    require_fresh(job)
    return job


def show_nearest(client: Client, job: JobAnswer, console: Console) -> None:
    """Show the photos by their similarity to the query photo."""
    photos = {
        item_name(item): client.embedding(_embedding(item).key)
        for item in job.items
        if item.type is Modality.IMAGE
    }
    ranked = rank(photos.pop(QUERY), photos)
    shown = ", ".join(f"{name} {score:.2f}" for name, score in ranked)
    console.print(f"\nNearest to {QUERY}: [bold]{ranked[0][0]}[/bold]   ({shown})")
    require(ranked[0][0] == EXPECTED_NEAREST, f"{EXPECTED_NEAREST} should be nearest to {QUERY}")


def show_transcripts(client: Client, job: JobAnswer, decoder: Path, console: Console) -> None:
    """Show the transcripts of the video's audio track and of the audio file, and check their error rates."""
    items = {item_name(item): item for item in job.items}
    spoken = {CLIP: _audio_track(items[CLIP]), AUDIO: _embedding(items[AUDIO])}
    for name, embedding in spoken.items():
        with console.status(f"decoding the speech of {name}"):
            text = transcribe(client.embedding(embedding.key), decoder)
        rate = word_error_rate(reference_texts()[name], text)
        console.print(f"\nHeard in {name}: [bold]{text}[/bold]\nword error rate {rate:.1%}")
        limit = MAX_WORD_ERROR_RATE
        require(rate <= limit, f"{name}: word error rate {rate:.1%} is over {limit:.0%}")
    console.print()


def encode_again(client: Client, samples: list[Sample], first: JobAnswer, console: Console) -> None:
    """The second run: checks that every item is a cache hit and that no encoder runs."""
    before = encoded_so_far(client)
    parts = len(part_keys(first))
    # Without this the comparison below would also hold if nothing were counted.
    require(before.items >= parts, f"{parts} embeddings, but the encoders counted {before.items} items")
    start = time.monotonic()
    job = client.encode([sample.as_item() for sample in samples], deadline=DEADLINE, wait=DEADLINE)
    seconds = time.monotonic() - start
    console.print(
        job_table(job, title=f"Second run: {len(samples)} items in {seconds:.2f} s, uploads included")
    )
    require_done(job)
    require_same_from_cache(first, job)
    after = encoded_so_far(client)
    require(after == before, f"encoders ran in the second run: {before} became {after}")
    counted = f"{after.items} items in {after.batches} batches"
    console.print(f"All cached. The encoders have run {counted}, as after the first run.\n")


def _audio_track(item: ItemAnswer) -> EmbeddingAnswer:
    found = [track.embedding for track in item.tracks if track.type is Modality.AUDIO and track.embedding]
    require(bool(found), f"{item_name(item)} has no embedding of its audio track")
    return found[0]


def _embedding(item: ItemAnswer) -> EmbeddingAnswer:
    if item.embedding is None:
        raise DemoFailed(f"{item_name(item)} has no embedding")
    return item.embedding


def _progress(console: Console) -> Progress:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    return Progress(*columns, console=console)


@dataclass(frozen=True)
class Encoded:
    """The totals of all GPU workers since they started."""

    batches: int
    items: int


def encoded_so_far(client: Client) -> Encoded:
    """The batches and items encoded so far, from heartbeats that are younger than this call.

    Raises:
        DemoFailed: no such heartbeat came within 15 s.
    """
    start = time.monotonic()
    while time.monotonic() - start < HEARTBEAT_LIMIT:
        asked = time.monotonic()
        workers = [worker for worker in client.status().workers if worker.kind == "encode"]
        if workers and all(worker.age < asked - start for worker in workers):
            return summed(workers)
        time.sleep(HEARTBEAT_POLL)
    raise DemoFailed(f"no heartbeat of an encode worker within {HEARTBEAT_LIMIT:.0f} s")


def summed(workers: Iterable[WorkerAnswer]) -> Encoded:
    """Add up several workers and all their encoders."""
    totals = {Count.ENCODE_BATCHES: 0.0, Count.ENCODE_ITEMS: 0.0}
    for worker in workers:
        for key, value in worker.counters.items():
            name, _ = split_counter_key(key)
            if name in totals:
                totals[Count(name)] += value
    return Encoded(int(totals[Count.ENCODE_BATCHES]), int(totals[Count.ENCODE_ITEMS]))


class DemoFailed(EpdError):
    """A check of the demo failed; the message says which."""

    code = "demo_failed"


def require(held: bool, message: str) -> None:
    """Raises ``DemoFailed`` with ``message`` unless ``held``."""
    if not held:
        raise DemoFailed(message)


def require_done(job: JobAnswer) -> None:
    """Check that every item and track has an embedding."""
    failed = [f"{name}: {_reason(part)}" for name, part in named_parts(job) if part.embedding is None]
    require(not failed and job.state is State.DONE, f"job is {job.state}; " + "; ".join(failed))


def require_fresh(job: JobAnswer) -> None:
    """Check that nothing came from the cache."""
    cached = [name for name, part in named_parts(job) if part.cached]
    require(not cached, f"already cached in the first run: {', '.join(cached)}")


def require_same_from_cache(first: JobAnswer, second: JobAnswer) -> None:
    """Check that the second run gave the same embeddings as the first, all from the cache."""
    encoded = [name for name, part in named_parts(second) if not part.cached]
    require(not encoded, f"not from the cache in the second run: {', '.join(encoded)}")
    require(part_keys(first) == part_keys(second), "the two runs gave different embedding keys")


def part_keys(job: JobAnswer) -> dict[str, str]:
    """Embedding keys by the name of the part."""
    return {name: part.embedding.key for name, part in named_parts(job) if part.embedding is not None}


def _reason(part: PartAnswer) -> str:
    return f"{part.error.code}: {part.error.message}" if part.error else str(part.state)
