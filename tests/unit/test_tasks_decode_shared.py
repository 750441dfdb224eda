"""Decoding where others meddle: the same bytes under another type, and bytes that go meanwhile."""

from __future__ import annotations

from pathlib import Path

import pytest
from tasks_kit import Bench, png

from epd.contracts.job import State
from epd.contracts.media import Modality
from epd.contracts.messages import DecodeMessage, FetchMessage
from tasks.flow.decode_item import decode_item
from tests.store_kit import Stores

IMAGE, VIDEO, AUDIO = Modality.IMAGE, Modality.VIDEO, Modality.AUDIO


@pytest.fixture
def bench(tmp_path: Path, stores: Stores) -> Bench:
    return Bench(tmp_path, stores)


def fetched(bench: Bench, message: FetchMessage) -> DecodeMessage:
    bench.fetch(message)
    return bench.outbox.decodes[-1]


def test_picture_as_audio_is_unsupported_whoever_else_sends_it(bench: Bench) -> None:
    source = bench.upload(png())
    sound, film = bench.job((AUDIO, source)), bench.job((VIDEO, source))
    decode = fetched(bench, sound)
    decode_item(bench.context, fetched(bench, film))
    assert bench.part(sound, "0.audio").state is State.RUNNING
    decode_item(bench.context, decode)
    error = bench.part(sound, "0.audio").error
    assert error is not None
    assert error.code == "unsupported_media"


def test_bytes_that_go_while_they_are_decoded_go_back_to_fetch(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    message = bench.job((IMAGE, bench.upload(png())))
    decode = fetched(bench, message)

    def lose(path: Path, **_: object) -> object:
        path.unlink()
        raise FileNotFoundError(path)

    monkeypatch.setattr("tasks.flow.tracks.decode", lose)
    decode_item(bench.context, decode)
    assert bench.part(message, "0.image").state is State.RUNNING
    assert bench.outbox.fetches[-1].job_id == message.job_id
    assert bench.files("r") == []
