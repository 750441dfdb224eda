"""Decode over a store: tracks, lost blobs, wrong types, expiry, redelivery."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import pytest
from billiard.exceptions import SoftTimeLimitExceeded
from tasks_kit import EYE, Bench, make_videos, png

from epd.contracts.errors import StoreUnavailable
from epd.contracts.job import PartRecord, State
from epd.contracts.media import BlobRef, Modality, RawAudio, RawFrames, RawImage
from epd.contracts.messages import MAX_ATTEMPTS, DecodeMessage, FetchMessage
from epd.store.values import BlobKind
from tasks.flow.decode_item import decode_item
from tests.store_kit import Stores

IMAGE, VIDEO, AUDIO = Modality.IMAGE, Modality.VIDEO, Modality.AUDIO


@pytest.fixture
def bench(tmp_path: Path, stores: Stores) -> Bench:
    return Bench(tmp_path, stores)


@pytest.fixture(scope="module")
def videos(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    return make_videos(tmp_path_factory.mktemp("videos"))


def fetched(bench: Bench, message: FetchMessage) -> DecodeMessage:
    bench.fetch(message)
    return bench.outbox.decodes[-1]


def code_of(bench: Bench, message: FetchMessage, part: str) -> str | None:
    error = bench.part(message, part).error
    return None if error is None else error.code


def test_image(bench: Bench) -> None:
    decode = fetched(bench, bench.job((IMAGE, bench.upload(png((1, 2, 3))))))
    tally = decode_item(bench.context, decode)
    (encode,) = bench.outbox.encodes
    assert isinstance(encode.raw, RawImage)
    pixels = np.fromfile(bench.store.blobs.path(encode.raw.blob), np.uint8).reshape(6, 8, 3)
    assert (pixels == (1, 2, 3)).all()
    assert encode.wanted == decode.main
    assert encode.source_bytes == len(png((1, 2, 3)))
    assert {"fetch_queue", "fetch", "decode_queue", "decode"} <= set(encode.timings)
    assert tally["decode_items"] == 1


def test_video_with_sound_has_two_parts(bench: Bench, videos: dict[str, bytes]) -> None:
    message = bench.job((VIDEO, bench.upload(videos["loud"])))
    decode_item(bench.context, fetched(bench, message))
    frames, sound = bench.outbox.encodes
    assert isinstance(frames.raw, RawFrames)
    assert isinstance(sound.raw, RawAudio)
    assert frames.audio is not None
    assert frames.audio.present
    assert sound.raw.sample_rate == 16000
    assert bench.parts(message) == {"0.video", "0.audio"}


def test_silent_video_has_one_part(bench: Bench, videos: dict[str, bytes]) -> None:
    message = bench.job((VIDEO, bench.upload(videos["silent"])))
    decode_item(bench.context, fetched(bench, message))
    (frames,) = bench.outbox.encodes
    assert frames.audio is not None
    assert not frames.audio.present
    assert bench.parts(message) == {"0.video"}


def test_silent_video_fails_where_sound_is_required(bench: Bench, videos: dict[str, bytes]) -> None:
    source = bench.upload(videos["silent"])
    strict, other = bench.job((VIDEO, source), audio_track="require"), bench.job((VIDEO, source))
    decode_item(bench.context, fetched(bench, strict))
    decode_item(bench.context, fetched(bench, other))
    assert code_of(bench, strict, "0.video") == "no_audio_track"
    assert bench.part(other, "0.video").state is State.RUNNING
    assert [encode.job_id for encode in bench.outbox.encodes] == [other.job_id]


def test_sound_is_left_alone_with_none(bench: Bench, videos: dict[str, bytes]) -> None:
    message = bench.job((VIDEO, bench.upload(videos["loud"])), audio_track="none")
    decode_item(bench.context, fetched(bench, message))
    (frames,) = bench.outbox.encodes
    assert frames.audio is not None
    assert frames.audio.present
    assert bench.parts(message) == {"0.video"}


def test_broken_sound_fails_alone(
    bench: Bench, videos: dict[str, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    from tasks.flow import decode_item as flow
    from workers.decode import decode

    def deaf(*args: object, **kwargs: object) -> object:
        if kwargs["modality"] is AUDIO:
            raise RuntimeError("no ear")
        return decode(*args, **kwargs)  # type: ignore[arg-type]

    monkeypatch.setattr("tasks.flow.tracks.decode", deaf)
    message = bench.job((VIDEO, bench.upload(videos["loud"])))
    flow.decode_item(bench.context, fetched(bench, message))
    assert [encode.wanted.track for encode in bench.outbox.encodes] == [VIDEO]
    assert code_of(bench, message, "0.audio") == "internal"
    assert bench.part(message, "0.video").state is State.RUNNING


def test_second_video_waits_for_both_tracks(bench: Bench, videos: dict[str, bytes]) -> None:
    source = bench.upload(videos["loud"])
    one, two = bench.job((VIDEO, source)), bench.job((VIDEO, source))
    decode_item(bench.context, fetched(bench, one))
    bench.fetch(two)
    assert len(bench.outbox.decodes) == 1, "its sound is known, so it waits without a decode"
    assert [encode.job_id for encode in bench.outbox.encodes] == [one.job_id] * 2
    for encode in bench.outbox.encodes:
        bench.complete(encode.wanted, encode.digest, sound=True if encode.wanted.track is VIDEO else None)
    for message in (one, two):
        view = bench.store.jobs.view(message.job_id)
        assert view is not None
        assert view.state is State.DONE
        assert set(view.parts) == {"0.video", "0.audio"}


def test_redelivery_after_the_end_changes_nothing(bench: Bench) -> None:
    message = bench.job((IMAGE, bench.upload(png())))
    decode = fetched(bench, message)
    decode_item(bench.context, decode)
    bench.complete(bench.outbox.encodes[0].wanted, decode.digest)
    decode_item(bench.context, decode)
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
    decode_item(bench.context, fetched(bench, message))
    assert code_of(bench, message, f"0.{modality}") == code
    assert not bench.outbox.encodes
    assert bench.files("r") == []


def test_lost_blob_goes_back_to_fetch_a_few_times(bench: Bench) -> None:
    message = bench.job((IMAGE, bench.upload(png())))
    decode = fetched(bench, message)
    (bench.settings.blob_dir / decode.blob.name).unlink()
    decode_item(bench.context, decode)
    (again,) = bench.outbox.fetches
    assert again.attempt == 1
    decode_item(bench.context, decode.model_copy(update={"attempt": MAX_ATTEMPTS}))
    assert code_of(bench, message, "0.image") == "blob_missing"


def test_changed_encoder_goes_back_to_fetch(bench: Bench) -> None:
    decode = fetched(bench, bench.job((IMAGE, bench.upload(png()))))
    bench.store.cards.announce(EYE.model_copy(update={"weights_digest": "c" * 64}))
    decode_item(bench.context, decode)
    assert len(bench.outbox.fetches) == 1
    assert not bench.outbox.encodes


def test_changed_encoder_lets_those_who_wait_ask_again_too(bench: Bench) -> None:
    source = bench.upload(png())
    one, two = bench.job((IMAGE, source)), bench.job((IMAGE, source))
    decode = fetched(bench, one)
    bench.fetch(two)
    bench.store.cards.announce(EYE.model_copy(update={"weights_digest": "c" * 64}))
    decode_item(bench.context, decode)
    assert {again.job_id for again in bench.outbox.fetches} == {one.job_id, two.job_id}


def test_item_that_was_sent_back_too_often_leaves_no_bytes(bench: Bench) -> None:
    message = bench.job((IMAGE, bench.upload(png())))
    decode = fetched(bench, message)
    with bench.store.blobs.create(BlobKind.SOURCE) as (name, file):
        file.write(png())
    blob = BlobRef(name=name, nbytes=len(png()))
    bench.store.cards.announce(EYE.model_copy(update={"weights_digest": "c" * 64}))
    decode_item(bench.context, decode.model_copy(update={"blob": blob, "attempt": MAX_ATTEMPTS}))
    assert code_of(bench, message, "0.image") == "encoder_not_ready"
    assert bench.files("s") == []


def test_cancelled_item_hands_its_flight_on(bench: Bench) -> None:
    source = bench.upload(png())
    one, two = bench.job((IMAGE, source)), bench.job((IMAGE, source))
    decode = fetched(bench, one)
    bench.fetch(two)
    bench.store.jobs.close(one.job_id, PartRecord(state=State.CANCELLED))
    assert decode_item(bench.context, decode) == {"decode_dropped": 1}
    assert [again.job_id for again in bench.outbox.fetches] == [two.job_id]
    assert not bench.outbox.encodes


@pytest.mark.parametrize("late", [False, True], ids=["cancelled", "expired"])
def test_the_bytes_of_an_item_that_is_not_decoded_are_freed(bench: Bench, late: bool) -> None:
    message = bench.job((IMAGE, bench.upload(png())))
    with bench.store.blobs.create(BlobKind.SOURCE) as (name, file):
        file.write(png())
    decode = fetched(bench, message).model_copy(update={"blob": BlobRef(name=name, nbytes=len(png()))})
    if late:
        bench.now += 61
    else:
        bench.store.jobs.close(message.job_id, PartRecord(state=State.CANCELLED))
    decode_item(bench.context, decode)
    assert bench.files("s") == bench.files("r") == []


def test_expired_item_is_not_decoded(bench: Bench) -> None:
    message = bench.job((IMAGE, bench.upload(png())))
    decode = fetched(bench, message)
    bench.now += 61
    assert decode_item(bench.context, decode) == {"decode_expired": 1}
    assert bench.part(message, "0.image").state is State.EXPIRED
    assert not bench.outbox.encodes


def test_broker_that_is_down_leaves_no_raw_file(bench: Bench) -> None:
    decode = fetched(bench, bench.job((IMAGE, bench.upload(png()))))
    bench.outbox.down = True
    with pytest.raises(StoreUnavailable):
        decode_item(bench.context, decode)
    assert bench.files("r") == []
    bench.outbox.down = False
    decode_item(bench.context, decode)
    assert len(bench.outbox.encodes) == 1


def test_soft_limit_comes_through(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    def hang(*_: object, **__: object) -> None:
        raise SoftTimeLimitExceeded

    monkeypatch.setattr("tasks.flow.tracks.decode", hang)
    decode = fetched(bench, bench.job((IMAGE, bench.upload(png()))))
    with pytest.raises(SoftTimeLimitExceeded):
        decode_item(bench.context, decode)
    assert bench.files("r") == []


def test_full_blob_space_postpones_until_the_deadline(tmp_path: Path, stores: Stores) -> None:
    bench = Bench(tmp_path, stores, blob_bytes=1 << 20)
    message = bench.job((IMAGE, bench.upload(png())))
    decode = fetched(bench, message)
    (bench.settings.blob_dir / "r-other").write_bytes(bytes(1 << 20))
    bench.store.blobs.sweep(3600)  # forgets the folder's size, which is measured only now and then
    decode_item(bench.context, decode)
    assert bench.outbox.decodes == [decode, decode]
    assert bench.outbox.countdowns[-1] == pytest.approx(1)
    bench.now = decode.deadline - 0.5
    decode_item(bench.context, decode)
    assert code_of(bench, message, "0.image") == "blob_space_full"


def test_long_work_keeps_its_flight(tmp_path: Path, stores: Stores, monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(tmp_path, stores, flight_lease=0.15)
    source = bench.upload(png())
    one, two = bench.job((IMAGE, source)), bench.job((IMAGE, source))
    decode = fetched(bench, one)
    from workers.decode import decode as real

    def slow(*args: object, **kwargs: object) -> object:
        time.sleep(0.4)
        bench.fetch(two)
        return real(*args, **kwargs)  # type: ignore[arg-type]

    monkeypatch.setattr("tasks.flow.tracks.decode", slow)
    decode_item(bench.context, decode)
    assert [each.job_id for each in bench.outbox.decodes] == [one.job_id]
    assert bench.store.flights.orphans() == []
