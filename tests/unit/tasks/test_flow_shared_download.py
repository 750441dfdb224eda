"""One download of a URL for all concurrent requests: shared bytes, shared errors, leaders that end."""

from __future__ import annotations

import time

from epd.contracts.job import PartId, PartRecord, State
from epd.contracts.media import Modality
from epd.contracts.messages import FetchMessage
from epd.identity import content_digest
from epd.store.values import Claim
from tasks.flow.flights import download_of
from tasks.flow.item import ItemRun
from tasks.flow.source import SAME_FLIGHT
from tests.unit.tasks.flow_kit import Bench, MakeBench, png
from tests.unit.tasks.page_site import Site, complete_all, fetch_during, in_flight

IMAGE, VIDEO, AUDIO = Modality.IMAGE, Modality.VIDEO, Modality.AUDIO


def test_a_request_during_a_download_shares_it(bench: Bench, site: Site) -> None:
    jobs = [bench.job((IMAGE, site.source)) for _ in range(5)]
    fetch_during(bench, site, jobs[0], jobs[1:])
    assert site.hits == 1
    (decode,) = bench.outbox.decodes
    assert bench.outbox.fetches == []
    assert not in_flight(bench, site)
    bench.decode(decode)
    complete_all(bench)
    assert [bench.part(job, "0.image").state for job in jobs] == [State.DONE] * 5


def test_one_job_that_names_a_url_twice_downloads_it_once(bench: Bench, site: Site) -> None:
    message = bench.job((IMAGE, site.source), (IMAGE, site.source))
    bench.fetch(message)
    assert site.hits == 1
    bench.decode(bench.outbox.decodes[0])
    complete_all(bench)
    assert {bench.part(message, f"{index}.image").state for index in (0, 1)} == {State.DONE}


def test_all_waiters_get_the_error_of_the_download(bench: Bench, site: Site) -> None:
    site.status = 404
    jobs = [bench.job((IMAGE, site.source)) for _ in range(4)]
    fetch_during(bench, site, jobs[0], jobs[1:])
    assert site.hits == 1
    assert [bench.code(job, "0.image") for job in jobs] == ["source_rejected"] * 4
    assert not in_flight(bench, site)


def test_all_waiters_get_the_error_of_decoding(bench: Bench, site: Site) -> None:
    site.body = png()[:45]
    jobs = [bench.job((IMAGE, site.source)) for _ in range(3)]
    fetch_during(bench, site, jobs[0], jobs[1:])
    bench.decode(bench.outbox.decodes[0])
    assert [bench.code(job, "0.image") for job in jobs] == ["corrupt_media"] * 3
    assert site.hits == 1


def test_another_media_type_has_limits_and_a_download_of_its_own(bench: Bench, site: Site) -> None:
    image, audio = bench.job((IMAGE, site.source)), bench.job((AUDIO, site.source))
    bench.fetch(image)
    bench.fetch(audio)
    assert site.hits == 2


def test_another_model_with_the_same_encoder_shares_it_too(bench: Bench, site: Site) -> None:
    one, two = bench.job((IMAGE, site.source)), bench.job((IMAGE, site.source), model="mute")
    fetch_during(bench, site, one, [two])
    assert site.hits == len(bench.outbox.decodes) == 1
    bench.decode(bench.outbox.decodes[0])
    complete_all(bench)
    assert bench.part(two, "0.image").state is State.DONE


def test_a_leader_that_finds_no_room_keeps_its_flight_and_passes_it_on_at_its_end(
    make_bench: MakeBench, site: Site
) -> None:
    bench = make_bench(blob_bytes=1 << 20)
    bench.fill_blob_folder()
    leader, waiter = bench.job((IMAGE, site.source)), bench.job((IMAGE, site.source))
    bench.fetch(leader)
    assert in_flight(bench, site)
    bench.fetch(waiter)
    assert len(bench.outbox.fetches) == 1, "the leader alone is postponed"
    bench.now = leader.deadline - 0.1
    bench.fetch(leader)
    assert bench.code(leader, "0.image") == "blob_space_full"
    assert bench.outbox.fetches[-1].job_id == waiter.job_id


def test_a_leader_that_dies_is_followed_within_its_lease(make_bench: MakeBench, site: Site) -> None:
    """It died with its message, as with a lost broker: the reaper publishes the message of a waiter."""
    bench = make_bench(flight_lease=0.3)
    dead, waiters = bench.job((IMAGE, site.source)), [bench.job((IMAGE, site.source)) for _ in range(2)]
    shared = download_of(ItemRun(bench.context, dead, dead.items[0]))
    assert shared is not None
    assert bench.store.flights.claim(shared.key, shared.waiter) is Claim.OWNED
    for waiter in waiters:
        bench.fetch(waiter)
    assert site.hits == 0
    bench.store.jobs.close(dead.job_id, PartRecord(state=State.CANCELLED))
    end = time.monotonic() + 5
    while not (orphans := bench.store.flights.orphans()):
        assert time.monotonic() < end
        time.sleep(0.01)
    (again,) = map(FetchMessage.from_json, orphans)
    bench.fetch(again)
    assert site.hits == 1
    bench.decode(bench.outbox.decodes[0])
    complete_all(bench)
    assert {bench.part(waiter, "0.image").state for waiter in waiters} == {State.DONE}


def test_an_expired_leader_passes_its_flight_on(make_bench: MakeBench, site: Site) -> None:
    bench = make_bench(blob_bytes=1 << 20)
    bench.fill_blob_folder()
    leader, waiter = bench.job((IMAGE, site.source)), bench.job((IMAGE, site.source))
    bench.fetch(leader)
    bench.fetch(waiter)
    bench.store.jobs.close(leader.job_id, PartRecord(state=State.CANCELLED))
    bench.fetch(leader)
    assert bench.outbox.fetches[-1].job_id == waiter.job_id


def test_a_download_just_before_is_shared_while_its_embedding_is_made(bench: Bench, site: Site) -> None:
    bench.fetch(bench.job((IMAGE, site.source)))
    bench.now += SAME_FLIGHT  # a second less than that passed between download and request
    bench.fetch(bench.job((IMAGE, site.source)))
    assert site.hits == 1
    assert len(bench.outbox.decodes) == 1
    bench.now += 1.5
    bench.fetch(bench.job((IMAGE, site.source)))
    assert site.hits == 2, "this server has no validators, so it cannot say that nothing has changed"
    assert len(bench.outbox.decodes) == 1


def test_a_cached_download_is_not_shared_beyond_its_time(bench: Bench, site: Site) -> None:
    bench.fetch(bench.job((IMAGE, site.source)))
    bench.decode(bench.outbox.decodes[0])
    complete_all(bench)
    site.body = png((0, 0, 255))
    bench.now += 1.01  # enqueued ten milliseconds after that download began
    bench.fetch(bench.job((IMAGE, site.source)))
    assert site.hits == 2
    assert bench.outbox.decodes[-1].digest == content_digest(site.body)


def test_a_flight_that_ended_before_it_was_joined_is_downloaded_again(bench: Bench, site: Site) -> None:
    first, second = bench.job((IMAGE, site.source)), bench.job((IMAGE, site.source))
    bench.fetch(first)
    active = bench.store.flights.active

    def active_until_asked(keys: list[str]) -> list[bool]:
        answer = active(keys)
        for key in keys:
            bench.store.flights.withdraw(key, first.job_id, PartId(0, IMAGE))
        return answer

    bench.store.flights.active = active_until_asked  # type: ignore[method-assign, assignment]
    bench.fetch(second)
    assert site.hits == 2
    assert [one.job_id for one in bench.outbox.decodes] == [first.job_id, second.job_id]
