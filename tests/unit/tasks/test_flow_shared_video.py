"""One download of a video for all concurrent requests; decode serves the waiters if the audio decides."""

from __future__ import annotations

import pytest

from epd.contracts.job import State
from epd.contracts.media import AudioTrackMode, Modality
from tests.unit.tasks.flow_kit import Bench
from tests.unit.tasks.page_site import Site, complete_all, fetch_during, in_flight

VIDEO = Modality.VIDEO


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
    assert in_flight(bench, site, VIDEO), "only decoding finds which parts there are"
    (decode,) = bench.outbox.decodes
    bench.decode(decode)
    assert not in_flight(bench, site, VIDEO)
    late = bench.job((VIDEO, site.source))
    bench.fetch(late)
    assert site.hits == 1
    assert len(bench.outbox.decodes) == 1
    assert {encode.job_id for encode in bench.outbox.encodes} == {jobs[0].job_id}
    complete_all(bench, has_audio=kind == "loud")
    parts = {"0.video", "0.audio"} if kind == "loud" else {"0.video"}
    for job in [*jobs, late]:
        assert bench.parts(job) == parts
        assert {bench.part(job, part).state for part in parts} == {State.DONE}


def test_a_file_that_is_no_video_fails_all(bench: Bench, site: Site) -> None:
    site.body = b"<html></html>"
    jobs = [bench.job((VIDEO, site.source)) for _ in range(3)]
    fetch_during(bench, site, jobs[0], jobs[1:])
    bench.decode(bench.outbox.decodes[0])
    assert [bench.code(job, "0.video") for job in jobs] == ["unsupported_media"] * 3
    assert site.hits == 1


def test_an_item_that_requires_audio_fails_alone_and_the_others_start_again(
    bench: Bench,
    site: Site,
    videos: dict[str, bytes],
) -> None:
    site.body = videos["silent"]
    strict = bench.job((VIDEO, site.source), audio_track=AudioTrackMode.REQUIRE)
    easy = bench.job((VIDEO, site.source))
    strict_too = bench.job((VIDEO, site.source), audio_track=AudioTrackMode.REQUIRE)
    fetch_during(bench, site, strict, [easy, strict_too])
    bench.decode(bench.outbox.decodes[0])
    for job in (strict, strict_too):
        assert bench.code(job, "0.video") == "no_audio_track"
    (again,) = bench.outbox.fetches
    assert again.job_id == easy.job_id
    bench.fetch(again)
    bench.decode(bench.outbox.decodes[-1])
    complete_all(bench, has_audio=False)
    assert bench.part(easy, "0.video").state is State.DONE
