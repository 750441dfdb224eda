"""One download of a video for all who want it at once: its sound decides its parts, so decoding lands it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from gated_site import Site, complete_all, fetch_during, flies, gated_site
from tasks_kit import Bench, make_videos

from epd.contracts.job import State
from epd.contracts.media import AudioTrackMode, Modality
from tasks.flow.decode_item import decode_item
from tests.store_kit import Stores

VIDEO = Modality.VIDEO


@pytest.fixture
def site() -> Iterator[Site]:
    with gated_site() as server:
        yield server


@pytest.fixture
def bench(tmp_path: Path, stores: Stores) -> Bench:
    return Bench(tmp_path, stores)


@pytest.fixture(scope="module")
def videos(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    return make_videos(tmp_path_factory.mktemp("videos"))


@pytest.mark.parametrize("kind", ["loud", "silent"])
def test_a_video_is_downloaded_and_decoded_once(
    bench: Bench,
    site: Site,
    videos: dict[str, bytes],
    kind: str,
) -> None:
    site.body = videos[kind]
    jobs = [bench.job((VIDEO, site.source)) for _ in range(4)]
    fetch_during(bench, site, jobs[0], jobs[1:])
    assert flies(bench, site, VIDEO), "only decoding tells which parts there are"
    (decode,) = bench.outbox.decodes
    decode_item(bench.context, decode)
    assert not flies(bench, site, VIDEO)
    late = bench.job((VIDEO, site.source))
    bench.fetch(late)
    assert site.hits == 1
    assert len(bench.outbox.decodes) == 1
    assert {encode.job_id for encode in bench.outbox.encodes} == {jobs[0].job_id}
    complete_all(bench, sound=kind == "loud")
    parts = {"0.video", "0.audio"} if kind == "loud" else {"0.video"}
    for job in [*jobs, late]:
        assert bench.parts(job) == parts
        assert {bench.part(job, part).state for part in parts} == {State.DONE}


def test_a_file_that_is_no_video_fails_all(bench: Bench, site: Site) -> None:
    site.body = b"<html></html>"
    jobs = [bench.job((VIDEO, site.source)) for _ in range(3)]
    fetch_during(bench, site, jobs[0], jobs[1:])
    decode_item(bench.context, bench.outbox.decodes[0])
    errors = [bench.part(job, "0.video").error for job in jobs]
    assert [error.code for error in errors if error] == ["unsupported_media"] * 3
    assert site.hits == 1


def test_who_insists_on_sound_fails_alone_and_the_others_start_anew(
    bench: Bench,
    site: Site,
    videos: dict[str, bytes],
) -> None:
    site.body = videos["silent"]
    strict = bench.job((VIDEO, site.source), audio_track=AudioTrackMode.REQUIRE)
    easy = bench.job((VIDEO, site.source))
    strict_too = bench.job((VIDEO, site.source), audio_track=AudioTrackMode.REQUIRE)
    fetch_during(bench, site, strict, [easy, strict_too])
    decode_item(bench.context, bench.outbox.decodes[0])
    for job in (strict, strict_too):
        error = bench.part(job, "0.video").error
        assert error is not None
        assert error.code == "no_audio_track"
    (again,) = bench.outbox.fetches
    assert again.job_id == easy.job_id
    bench.fetch(again)
    decode_item(bench.context, bench.outbox.decodes[-1])
    complete_all(bench, sound=False)
    assert bench.part(easy, "0.video").state is State.DONE
