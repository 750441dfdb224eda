"""The scenes of the demo that use a running stack: encode all, nearest photo, transcripts, and all again."""

from __future__ import annotations

import time
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from demo import checks
from demo.batches import encoded_so_far
from demo.nearest import rank
from demo.samples import CLIP, QUERY, SOUND, Sample, reference_texts
from demo.table import item_name, job_table
from demo.transcribe import transcribe, word_error_rate
from epd.client.blocking import Client
from epd.contracts.answers import EmbeddingAnswer, ItemAnswer, JobAnswer
from epd.contracts.job import FINAL_STATES
from epd.contracts.media import Modality

DEADLINE = 300.0
EXPECTED_NEAREST = "cat.jpg"


def encode_all(client: Client, samples: list[Sample], console: Console) -> JobAnswer:
    """The first run, with a bar that moves at each finished item, and its table."""
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
    checks.require_done(job)
    checks.require_fresh(job)
    return job


def encode_again(client: Client, samples: list[Sample], first: JobAnswer, console: Console) -> None:
    """The second run: every item is a cache hit and no encoder runs."""
    before = encoded_so_far(client)
    parts = len(checks.part_keys(first))
    # Without this the comparison below could hold because nothing is counted at all.
    checks.require(
        before.items >= parts, f"{parts} embeddings, but the encoders counted {before.items} items"
    )
    start = time.monotonic()
    job = client.encode([sample.as_item() for sample in samples], deadline=DEADLINE, wait=DEADLINE)
    seconds = time.monotonic() - start
    console.print(
        job_table(job, title=f"Second run: {len(samples)} items in {seconds:.2f} s, uploads included")
    )
    checks.require_done(job)
    checks.require_same_from_cache(first, job)
    after = encoded_so_far(client)
    checks.require(after == before, f"encoders ran in the second run: {before} became {after}")
    counted = f"{after.items} items in {after.batches} batches"
    console.print(f"All cached. The encoders stand at {counted}, as after the first run.\n")


def show_nearest(client: Client, job: JobAnswer, console: Console) -> None:
    """The photos in the order of their cosine to the query photo."""
    photos = {
        item_name(item): client.embedding(_embedding(item).key)
        for item in job.items
        if item.type is Modality.IMAGE
    }
    ranked = rank(photos.pop(QUERY), photos)
    shown = ", ".join(f"{name} {score:.2f}" for name, score in ranked)
    console.print(f"\nNearest to {QUERY}: [bold]{ranked[0][0]}[/bold]   ({shown})")
    checks.require(ranked[0][0] == EXPECTED_NEAREST, f"{EXPECTED_NEAREST} should be nearest to {QUERY}")


def show_transcripts(client: Client, job: JobAnswer, decoder: Path, console: Console) -> None:
    """What the reference decoder hears in the embeddings of the video's audio track and of the sound file."""
    items = {item_name(item): item for item in job.items}
    heard = {CLIP: _audio_track(items[CLIP]), SOUND: _embedding(items[SOUND])}
    for name, embedding in heard.items():
        with console.status(f"decoding the speech of {name}"):
            text = transcribe(client.embedding(embedding.key), decoder)
        rate = word_error_rate(reference_texts()[name], text)
        console.print(f"\nHeard in {name}: [bold]{text}[/bold]\nword error rate {rate:.1%}")
        limit = checks.MAX_WORD_ERROR_RATE
        checks.require(rate <= limit, f"{name}: word error rate {rate:.1%} is over {limit:.0%}")
    console.print()


def _audio_track(item: ItemAnswer) -> EmbeddingAnswer:
    found = [track.embedding for track in item.tracks if track.type is Modality.AUDIO and track.embedding]
    checks.require(bool(found), f"{item_name(item)} has no embedding of its audio track")
    return found[0]


def _embedding(item: ItemAnswer) -> EmbeddingAnswer:
    if item.embedding is None:
        raise checks.DemoFailed(f"{item_name(item)} has no embedding")
    return item.embedding


def _progress(console: Console) -> Progress:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    return Progress(*columns, console=console)
