"""Fetch of videos: a video may have an audio part, and the cache may know whether it has."""

from __future__ import annotations

from epd.contracts.job import State
from epd.contracts.media import Modality
from epd.contracts.messages import FetchMessage
from tests.unit.tasks.flow_kit import EAR, Bench

VIDEO, AUDIO = Modality.VIDEO, Modality.AUDIO


def digest_of(message: FetchMessage) -> str:
    assert message.items[0].source.media_id is not None
    return message.items[0].source.media_id


def test_unknown_video_is_left_to_decode_unclaimed(bench: Bench) -> None:
    source = bench.upload(b"video")
    one, two = bench.job((VIDEO, source)), bench.job((VIDEO, source))
    bench.fetch(one)
    bench.fetch(two)
    assert len(bench.outbox.decodes) == 2
    assert all(decode.main and decode.audio for decode in bench.outbox.decodes)


def test_video_without_wanted_audio_is_claimed(bench: Bench) -> None:
    source = bench.upload(b"video")
    bench.fetch(bench.job((VIDEO, source), audio_track="none"))
    bench.fetch(bench.job((VIDEO, source), audio_track="none"))
    (decode,) = bench.outbox.decodes
    assert decode.audio is None


def test_cached_silent_video_has_no_child(bench: Bench) -> None:
    message = bench.job((VIDEO, bench.upload(b"video")))
    digest = digest_of(message)
    bench.complete(bench.wanted(message, VIDEO, digest), digest, has_audio=False)
    bench.fetch(message)
    assert bench.parts(message) == {"0.video"}
    assert bench.part(message, "0.video").cached


def test_cached_silent_video_fails_where_audio_is_required(bench: Bench) -> None:
    message = bench.job((VIDEO, bench.upload(b"video")), audio_track="require")
    digest = digest_of(message)
    bench.complete(bench.wanted(message, VIDEO, digest), digest, has_audio=False)
    bench.fetch(message)
    assert bench.code(message, "0.video") == "no_audio_track"


def test_both_cached(bench: Bench) -> None:
    message = bench.job((VIDEO, bench.upload(b"video")))
    digest = digest_of(message)
    bench.complete(bench.wanted(message, VIDEO, digest), digest, has_audio=True)
    bench.complete(bench.wanted(message, AUDIO, digest), digest)
    bench.fetch(message)
    assert bench.part(message, "0.video").cached
    assert bench.part(message, "0.audio").cached
    assert not bench.outbox.decodes


def test_cached_frames_with_missing_audio(bench: Bench) -> None:
    message = bench.job((VIDEO, bench.upload(b"video")))
    digest = digest_of(message)
    bench.complete(bench.wanted(message, VIDEO, digest), digest, has_audio=True)
    bench.fetch(message)
    (decode,) = bench.outbox.decodes
    assert decode.main is None
    assert decode.audio is not None
    assert bench.part(message, "0.video").state is State.DONE
    assert bench.part(message, "0.audio").state is State.QUEUED


def test_cached_audio_with_missing_frames(bench: Bench) -> None:
    message = bench.job((VIDEO, bench.upload(b"video")))
    digest = digest_of(message)
    bench.complete(bench.wanted(message, AUDIO, digest), digest)
    bench.fetch(message)
    (decode,) = bench.outbox.decodes
    assert decode.main is not None
    assert decode.audio is None
    assert bench.part(message, "0.audio").cached


def test_model_without_ear_has_no_child(bench: Bench) -> None:
    message = bench.job((VIDEO, bench.upload(b"video")), model="mute")
    bench.fetch(message)
    assert bench.outbox.decodes[0].audio is None


def test_changed_ear_is_another_key(bench: Bench) -> None:
    message = bench.job((VIDEO, bench.upload(b"video")))
    digest = digest_of(message)
    bench.complete(bench.wanted(message, VIDEO, digest), digest, has_audio=True)
    bench.complete(bench.wanted(message, AUDIO, digest), digest)
    bench.store.cards.announce(EAR.model_copy(update={"weights_digest": "c" * 64}))
    bench.fetch(message)
    assert bench.outbox.decodes[0].audio is not None
