"""Admission and results over a store: every way in which an encode message can end."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from epd.contracts.errors import BlobMissing, EncodeFailed, StoreUnavailable
from epd.contracts.job import ErrorInfo, PartRecord, State
from epd.contracts.media import RawAudio, RawFrames, RawMedia
from epd.contracts.messages import MAX_ATTEMPTS
from epd.store.files.embedding_format import open_embedding
from epd.store.values import Completed
from gpu_worker.engine.slot import Dropped, DropReason, Failed
from gpu_worker.service.results import entry_of
from gpu_worker.service.tickets import TaskStatus
from tests.store_kit import Stores
from tests.unit.service.encode_bench import EncodeBench, again, encoded

CANCELLED = PartRecord(state=State.CANCELLED)


@pytest.fixture
def bench(tmp_path: Path, stores: Stores) -> EncodeBench:
    return EncodeBench(tmp_path, stores)


def test_rows_become_file_entry_and_finished_parts_of_all_who_wait(bench: EncodeBench) -> None:
    owner, waiter = bench.ticket(1), bench.ticket(1)
    (result,) = bench.writer.settle([(owner, encoded(3))])
    assert result.status is TaskStatus.ENCODED
    assert result.summary["tokens"] == 3
    done = bench.state_of(owner)
    assert done.state is State.DONE
    assert done.timings["decode"] == 0.5
    assert done.timings["encode_queue"] == pytest.approx(2.0)
    assert {"forward", "write"} <= done.timings.keys()
    assert bench.state_of(waiter).state is State.DONE
    (entry,) = bench.store.embeddings.lookup([owner.message.wanted.key])
    assert entry is not None
    assert entry.metadata.content_digest == owner.message.digest
    assert open_embedding(bench.store.embeddings.path(entry.ref.key)).shape == (3, 2)


def test_blobs_live_until_they_are_released(bench: EncodeBench) -> None:
    ticket = bench.ticket(1)
    bench.writer.settle([(ticket, encoded())])
    assert bench.has_blob(ticket)
    bench.writer.free_blobs([ticket.message])
    assert not bench.has_blob(ticket)


def test_a_second_delivery_of_finished_work_is_dropped_or_changes_nothing(bench: EncodeBench) -> None:
    ticket = bench.ticket(1)
    bench.writer.settle([(ticket, encoded(3))])
    assert bench.admission.admit([ticket]) == [Dropped(DropReason.CANCELLED)]
    (result,) = bench.writer.settle([(ticket, encoded(3))])
    assert result.status is TaskStatus.ENCODED
    assert bench.state_of(ticket).state is State.DONE


def test_an_error_fails_every_waiting_part_with_its_own_code(bench: EncodeBench) -> None:
    owner, waiter = bench.ticket(1), bench.ticket(1)
    (result,) = bench.writer.settle([(owner, Failed(EncodeFailed("no")))])
    assert result.status is TaskStatus.FAILED
    for ticket in (owner, waiter):
        record = bench.state_of(ticket)
        assert record.state is State.FAILED
        assert record.error is not None
        assert record.error.code == "encode_failed"


def test_rows_that_the_grid_does_not_give_fail_that_item_alone(bench: EncodeBench) -> None:
    bad, good = bench.ticket(1), bench.ticket(2)
    results = bench.writer.settle([(bad, encoded(3, grid=(1, 2, 2))), (good, encoded(4, grid=(1, 2, 2)))])
    assert {one.ticket_id: one.status for one in results} == {
        bad.id: TaskStatus.FAILED,
        good.id: TaskStatus.ENCODED,
    }
    assert bench.state_of(bad).state is State.FAILED
    assert bench.state_of(good).state is State.DONE


def test_a_lost_blob_is_fetched_again_a_bounded_number_of_times(bench: EncodeBench) -> None:
    ticket = bench.ticket(1)
    (bench.settings.blob_dir / ticket.message.raw.blob.name).unlink()
    (outcome,) = bench.admission.admit([ticket])
    assert isinstance(outcome, Failed)
    assert isinstance(outcome.error, BlobMissing)
    (result,) = bench.writer.settle([(ticket, outcome)])
    assert result.status is TaskStatus.REFETCHED
    (message,) = bench.outbox.fetches
    assert (message.job_id, message.attempt) == (ticket.message.job_id, 1)
    assert bench.state_of(ticket).state is State.RUNNING
    (last,) = bench.writer.settle([(again(ticket, MAX_ATTEMPTS), outcome)])
    assert last.status is TaskStatus.FAILED
    record = bench.state_of(ticket)
    assert record.error is not None
    assert record.error.code == "blob_missing"


def test_another_encoder_than_the_message_wants_sends_the_item_back(bench: EncodeBench) -> None:
    ticket = bench.ticket(1)
    wanted = ticket.message.wanted.model_copy(update={"encoder_identity": "f" * 64})
    stale = replace(ticket, message=ticket.message.model_copy(update={"wanted": wanted}))
    (outcome,) = bench.admission.admit([stale])
    assert isinstance(outcome, Failed)
    (result,) = bench.writer.settle([(stale, outcome)])
    assert result.status is TaskStatus.REFETCHED
    assert result.summary["reason"] == "encoder_not_ready"


def test_an_expired_item_ends_as_expired_and_hands_the_flight_on(bench: EncodeBench) -> None:
    owner, waiter = bench.ticket(1, seconds=5), bench.ticket(1)
    bench.now += 10
    (outcome,) = bench.admission.admit([owner])
    assert outcome == Dropped(DropReason.EXPIRED)
    (result,) = bench.writer.settle([(owner, outcome)])
    assert result.status is TaskStatus.EXPIRED
    assert bench.state_of(owner).state is State.EXPIRED
    assert bench.state_of(waiter).state is State.QUEUED
    assert [message.job_id for message in bench.outbox.fetches] == [waiter.message.job_id]


def test_a_cancelled_job_is_dropped_before_and_after_it_was_queued(bench: EncodeBench) -> None:
    ticket = bench.ticket(1)
    assert isinstance(bench.admission.admit([ticket])[0], Path)
    bench.store.jobs.close(ticket.message.job_id, CANCELLED)
    asked_now = replace(ticket, checked_at=bench.now)
    assert bench.admission.still_wanted([asked_now]), "an answer of a second ago is not asked for again"
    bench.now += 2
    assert not bench.admission.still_wanted([asked_now])
    assert bench.admission.admit([ticket]) == [Dropped(DropReason.CANCELLED)]


def test_a_revoked_task_ends_its_part(bench: EncodeBench) -> None:
    ticket = bench.ticket(1)
    (result,) = bench.writer.settle([(ticket, Dropped(DropReason.CANCELLED))])
    assert result.status is TaskStatus.CANCELLED
    record = bench.state_of(ticket)
    assert record.state is State.CANCELLED
    assert isinstance(record.error, ErrorInfo)


class _Away:
    """Flights whose server is away for the first calls of ``complete``."""

    def __init__(self, flights: Any, times: int) -> None:
        self._flights, self.times = flights, times

    def complete(self, batch: Sequence[Completed]) -> Any:
        if self.times > 0:
            self.times -= 1
            raise StoreUnavailable("away")
        return self._flights.complete(batch)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._flights, name)


def with_flights_away(bench: EncodeBench, times: int) -> _Away:
    away = _Away(bench.store.flights, times)
    object.__setattr__(bench.store, "flights", away)
    return away


def test_a_reply_waits_for_a_store_that_is_away(bench: EncodeBench) -> None:
    ticket = bench.ticket(1)
    away = with_flights_away(bench, times=2)
    (result,) = bench.writer.settle([(ticket, encoded())])
    assert result.status is TaskStatus.ENCODED
    assert away.times == 0


def test_a_stopping_worker_gives_no_result_for_what_it_could_not_write(bench: EncodeBench) -> None:
    ticket = bench.ticket(1)
    with_flights_away(bench, times=1_000_000)
    threading.Timer(0.2, bench.retry.stop).start()
    assert bench.writer.settle([(ticket, encoded())]) == []


def test_a_store_that_is_away_past_the_deadline_ends_in_a_failure(bench: EncodeBench) -> None:
    ticket = bench.ticket(1)
    with_flights_away(bench, times=1_000_000)
    bench.now += 1000
    (result,) = bench.writer.settle([(ticket, encoded())])
    assert result.status is TaskStatus.FAILED
    assert isinstance(result.error, StoreUnavailable)


@pytest.mark.parametrize("kind", [RawFrames, RawAudio])
@pytest.mark.parametrize("partial", [True, False])
def test_a_truncated_file_is_marked_as_partial(
    tmp_path: Path, stores: Stores, kind: type[RawMedia], partial: bool
) -> None:
    bench = EncodeBench(tmp_path, stores)
    message = bench.ticket(1).message
    blob = message.raw.blob
    raw: RawMedia = RawAudio(blob=blob, samples=8, sample_rate=4, partial=partial)
    if kind is RawFrames:
        raw = RawFrames(
            blob=blob, frames=1, height=4, width=6, original_size=(6, 4), timestamps=(0.0,),
            duration=1.0, sampled_fps=1.0, source_frames=1, partial=partial,
        )  # fmt: skip
    entry = entry_of(message.model_copy(update={"raw": raw}), bench.card, encoded(3))
    assert entry.metadata.partial is partial
