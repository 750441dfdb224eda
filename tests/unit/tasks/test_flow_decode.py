"""Decode over a store: tracks, lost blobs, wrong types, expiry, redelivery."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from epd.contracts.errors import StoreUnavailable
from epd.contracts.job import PartRecord, State
from epd.contracts.media import BlobRef, Modality, RawImage
from epd.contracts.messages import MAX_ATTEMPTS
from epd.store.values import BlobKind
from tasks.flow.decode import CLAIM_LIFE, decode_item
from tasks.flow.fair_executor import FairExecutor
from tasks.flow.work import Work
from tests.unit.tasks.flow_kit import EYE, Bench, MakeBench, png

IMAGE, VIDEO, AUDIO = Modality.IMAGE, Modality.VIDEO, Modality.AUDIO


def test_image(bench: Bench) -> None:
    decode = bench.fetched(bench.job((IMAGE, bench.upload(png((1, 2, 3))))))
    tally = bench.decode(decode)
    (encode,) = bench.outbox.encodes
    assert isinstance(encode.raw, RawImage)
    pixels = np.fromfile(bench.store.blobs.path(encode.raw.blob), np.uint8).reshape(6, 8, 3)
    assert (pixels == (1, 2, 3)).all()
    assert encode.wanted == decode.main
    assert encode.source_bytes == len(png((1, 2, 3)))
    assert {"fetch_queue", "fetch", "decode_queue", "decode"} <= set(encode.timings)
    assert tally["decode_items"] == 1


def test_redelivery_after_the_end_changes_nothing(bench: Bench) -> None:
    message = bench.job((IMAGE, bench.upload(png())))
    decode = bench.fetched(message)
    bench.decode(decode)
    bench.complete(bench.outbox.encodes[0].wanted, decode.digest)
    bench.decode(decode)
    assert len(bench.outbox.encodes) == 1
    assert bench.part(message, "0.image").state is State.DONE


@pytest.mark.parametrize(
    ("modality", "data", "code"),
    [
        (AUDIO, png(), "unsupported_media"),
        (VIDEO, b"<html></html>", "unsupported_media"),
        (IMAGE, b"", "empty_media"),
        (IMAGE, png()[:45], "corrupt_media"),
    ],
    ids=["image as audio", "page", "nothing", "cut off"],
)
def test_bytes_of_another_kind_fail(bench: Bench, modality: Modality, data: bytes, code: str) -> None:
    message = bench.job((modality, bench.upload(data)))
    bench.decode(bench.fetched(message))
    assert bench.code(message, f"0.{modality}") == code
    assert not bench.outbox.encodes
    assert bench.files("r") == []


def test_lost_blob_goes_back_to_fetch_a_few_times(bench: Bench) -> None:
    message = bench.job((IMAGE, bench.upload(png())))
    decode = bench.fetched(message)
    (bench.settings.blob_dir / decode.blob.name).unlink()
    bench.decode(decode)
    (again,) = bench.outbox.fetches
    assert again.attempt == 1
    bench.decode(decode.model_copy(update={"attempt": MAX_ATTEMPTS}))
    assert bench.code(message, "0.image") == "blob_missing"


def test_changed_encoder_goes_back_to_fetch(bench: Bench) -> None:
    decode = bench.fetched(bench.job((IMAGE, bench.upload(png()))))
    bench.store.cards.announce(EYE.model_copy(update={"weights_digest": "c" * 64}))
    bench.decode(decode)
    assert len(bench.outbox.fetches) == 1
    assert not bench.outbox.encodes


def test_changed_encoder_sends_its_waiters_back_too(bench: Bench) -> None:
    source = bench.upload(png())
    one, two = bench.job((IMAGE, source)), bench.job((IMAGE, source))
    decode = bench.fetched(one)
    bench.fetch(two)
    bench.store.cards.announce(EYE.model_copy(update={"weights_digest": "c" * 64}))
    bench.decode(decode)
    assert {again.job_id for again in bench.outbox.fetches} == {one.job_id, two.job_id}


def test_item_that_was_sent_back_too_often_leaves_no_bytes(bench: Bench) -> None:
    message = bench.job((IMAGE, bench.upload(png())))
    decode = bench.fetched(message)
    with bench.store.blobs.create(BlobKind.SOURCE) as (name, file):
        file.write(png())
    blob = BlobRef(name=name, nbytes=len(png()))
    bench.store.cards.announce(EYE.model_copy(update={"weights_digest": "c" * 64}))
    bench.decode(decode.model_copy(update={"blob": blob, "attempt": MAX_ATTEMPTS}))
    assert bench.code(message, "0.image") == "encoder_not_ready"
    assert bench.files("s") == []


def test_cancelled_item_hands_its_flight_on(bench: Bench) -> None:
    source = bench.upload(png())
    one, two = bench.job((IMAGE, source)), bench.job((IMAGE, source))
    decode = bench.fetched(one)
    bench.fetch(two)
    bench.store.jobs.close(one.job_id, PartRecord(state=State.CANCELLED))
    assert bench.decode(decode) == {"decode_dropped": 1}
    assert [again.job_id for again in bench.outbox.fetches] == [two.job_id]
    assert not bench.outbox.encodes


@pytest.mark.parametrize("late", [False, True], ids=["cancelled", "expired"])
def test_the_bytes_of_an_item_that_is_not_decoded_are_freed(bench: Bench, late: bool) -> None:
    message = bench.job((IMAGE, bench.upload(png())))
    with bench.store.blobs.create(BlobKind.SOURCE) as (name, file):
        file.write(png())
    decode = bench.fetched(message).model_copy(update={"blob": BlobRef(name=name, nbytes=len(png()))})
    if late:
        bench.now += 61
    else:
        bench.store.jobs.close(message.job_id, PartRecord(state=State.CANCELLED))
    bench.decode(decode)
    assert bench.files("s") == bench.files("r") == []


def test_expired_item_is_not_decoded(bench: Bench) -> None:
    message = bench.job((IMAGE, bench.upload(png())))
    decode = bench.fetched(message)
    bench.now += 61
    assert bench.decode(decode) == {"decode_expired": 1}
    assert bench.part(message, "0.image").state is State.EXPIRED
    assert not bench.outbox.encodes


def test_broker_that_is_down_leaves_no_raw_file(bench: Bench) -> None:
    decode = bench.fetched(bench.job((IMAGE, bench.upload(png()))))
    bench.outbox.down = True
    with pytest.raises(StoreUnavailable):
        bench.decode(decode)
    assert bench.files("r") == []
    bench.outbox.down = False
    bench.decode(decode)
    assert len(bench.outbox.encodes) == 1


def test_full_blob_space_postpones_until_the_deadline(make_bench: MakeBench) -> None:
    bench = make_bench(blob_bytes=1 << 20)
    message = bench.job((IMAGE, bench.upload(png())))
    decode = bench.fetched(message)
    (bench.settings.blob_dir / "r-other").write_bytes(bytes(1 << 20))
    bench.store.blobs.sweep(3600)  # forgets the folder's size, which is measured only now and then
    bench.decode(decode)
    assert bench.outbox.decodes == [decode, decode]
    assert bench.outbox.countdowns[-1] == pytest.approx(1)
    bench.now = decode.deadline - 0.5
    bench.decode(decode)
    assert bench.code(message, "0.image") == "blob_space_full"


def test_long_work_keeps_its_flight(make_bench: MakeBench, monkeypatch: pytest.MonkeyPatch) -> None:
    bench = make_bench(flight_lease=0.15)
    source = bench.upload(png())
    one, two = bench.job((IMAGE, source)), bench.job((IMAGE, source))
    decode = bench.fetched(one)
    real = bench.decoder.decode

    def slow(path: Path, **how: Any) -> object:
        time.sleep(0.4)
        bench.fetch(two)
        return real(path, **how)

    monkeypatch.setattr(bench.decoder, "decode", slow)
    decodes = FairExecutor("decode", 1)
    Work(bench.context, decodes, decodes).decode(decode).result(10)
    decodes.close()
    assert [each.job_id for each in bench.outbox.decodes] == [one.job_id]
    assert bench.store.flights.orphans() == []


def test_bytes_that_go_while_they_are_decoded_go_back_to_fetch(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    message = bench.job((IMAGE, bench.upload(png())))
    decode = bench.fetched(message)

    def lose(path: Path, **_: object) -> object:
        path.unlink()
        raise FileNotFoundError(path)

    monkeypatch.setattr(bench.decoder, "decode", lose)
    bench.decode(decode)
    assert bench.part(message, "0.image").state is State.RUNNING
    assert bench.outbox.fetches[-1].job_id == message.job_id
    assert bench.files("r") == []


def test_item_that_was_claimed_here_is_decoded_without_another_look(bench: Bench) -> None:
    message = bench.job((IMAGE, bench.upload(png())))
    decode = bench.fetched(message)
    bench.store.jobs.close(message.job_id, PartRecord(state=State.CANCELLED))
    tally = decode_item(bench.context, decode, is_claimed=True)
    assert tally["decode_items"] == 1
    bench.now += 2 * CLAIM_LIFE
    assert decode_item(bench.context, decode, is_claimed=True) == {"decode_dropped": 1}
