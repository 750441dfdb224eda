"""Decode of videos: which parts they have, and what happens when the audio is missing or broken."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from epd.contracts.job import PartId, PartRecord, State
from epd.contracts.media import Modality, RawAudio, RawFrames
from epd.identity import content_digest
from tests.unit.tasks.flow_kit import Bench, png

IMAGE, VIDEO, AUDIO = Modality.IMAGE, Modality.VIDEO, Modality.AUDIO


def test_video_with_audio_has_two_parts(bench: Bench, videos: dict[str, bytes]) -> None:
    message = bench.job((VIDEO, bench.upload(videos["loud"])))
    bench.decode(bench.fetched(message))
    frames, audio = bench.outbox.encodes
    assert isinstance(frames.raw, RawFrames)
    assert isinstance(audio.raw, RawAudio)
    assert frames.audio is not None
    assert frames.audio.present
    assert audio.raw.sample_rate == 16000
    assert bench.parts(message) == {"0.video", "0.audio"}


def test_silent_video_has_one_part(bench: Bench, videos: dict[str, bytes]) -> None:
    message = bench.job((VIDEO, bench.upload(videos["silent"])))
    bench.decode(bench.fetched(message))
    (frames,) = bench.outbox.encodes
    assert frames.audio is not None
    assert not frames.audio.present
    assert bench.parts(message) == {"0.video"}


def test_silent_video_fails_where_audio_is_required(bench: Bench, videos: dict[str, bytes]) -> None:
    source = bench.upload(videos["silent"])
    strict, other = bench.job((VIDEO, source), audio_track="require"), bench.job((VIDEO, source))
    bench.decode(bench.fetched(strict))
    bench.decode(bench.fetched(other))
    assert bench.code(strict, "0.video") == "no_audio_track"
    assert bench.part(other, "0.video").state is State.RUNNING
    assert [encode.job_id for encode in bench.outbox.encodes] == [other.job_id]


def test_audio_is_left_alone_with_none(bench: Bench, videos: dict[str, bytes]) -> None:
    message = bench.job((VIDEO, bench.upload(videos["loud"])), audio_track="none")
    bench.decode(bench.fetched(message))
    (frames,) = bench.outbox.encodes
    assert frames.audio is not None
    assert frames.audio.present
    assert bench.parts(message) == {"0.video"}


def test_broken_audio_fails_alone(
    bench: Bench, videos: dict[str, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    real = bench.decoder.decode

    def deaf(path: Path, **how: Any) -> object:
        if how["modality"] is AUDIO:
            raise RuntimeError("no ear")
        return real(path, **how)

    monkeypatch.setattr(bench.decoder, "decode", deaf)
    message = bench.job((VIDEO, bench.upload(videos["loud"])))
    bench.decode(bench.fetched(message))
    assert [encode.wanted.track for encode in bench.outbox.encodes] == [VIDEO]
    assert bench.code(message, "0.audio") == "internal"
    assert bench.part(message, "0.video").state is State.RUNNING


def test_second_video_waits_for_both_tracks(bench: Bench, videos: dict[str, bytes]) -> None:
    source = bench.upload(videos["loud"])
    one, two = bench.job((VIDEO, source)), bench.job((VIDEO, source))
    bench.decode(bench.fetched(one))
    bench.fetch(two)
    assert len(bench.outbox.decodes) == 1, "its audio is known, so it waits without a decode"
    assert [encode.job_id for encode in bench.outbox.encodes] == [one.job_id] * 2
    for encode in bench.outbox.encodes:
        bench.complete(encode.wanted, encode.digest, has_audio=True if encode.wanted.track is VIDEO else None)
    for message in (one, two):
        view = bench.store.jobs.view(message.job_id)
        assert view is not None
        assert view.state is State.DONE
        assert set(view.parts) == {"0.video", "0.audio"}


def test_an_image_sent_as_audio_is_unsupported(bench: Bench) -> None:
    source = bench.upload(png())
    audio, film = bench.job((AUDIO, source)), bench.job((VIDEO, source))
    decode = bench.fetched(audio)
    bench.decode(bench.fetched(film))
    assert bench.part(audio, "0.audio").state is State.RUNNING
    bench.decode(decode)
    assert bench.code(audio, "0.audio") == "unsupported_media"


@pytest.mark.parametrize("known", ["by nobody", "by a note", "by cached frames"])
def test_an_item_fetched_again_for_its_audio_fails_where_its_video_is_silent_now(
    bench: Bench, videos: dict[str, bytes], known: str
) -> None:
    message = bench.job((VIDEO, bench.upload(videos["silent"])))
    digest, jobs = content_digest(videos["silent"]), bench.store.jobs
    jobs.add_part(message.job_id, PartId(0, AUDIO))
    jobs.finish(message.job_id, PartId(0, VIDEO), PartRecord(state=State.DONE))
    if known == "by a note":
        bench.store.sources.note_audio(digest, False)
    if known == "by cached frames":
        bench.complete(bench.wanted(message, VIDEO, digest), digest, has_audio=False)
    bench.fetch(message)
    for decode in bench.outbox.decodes:
        bench.decode(decode)
    assert bench.code(message, "0.audio") == "no_audio_track"
    assert bench.part(message, "0.video").state is State.DONE
    assert len(bench.outbox.decodes) == int(known == "by nobody")
    assert bench.outbox.encodes == []
