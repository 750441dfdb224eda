"""Fetch over a store: cached, waiting, owned, postponed, failed, and chunks of all of them."""

from __future__ import annotations

import pytest

from epd.contracts.errors import StoreUnavailable
from epd.contracts.job import State
from epd.contracts.media import Modality, Source
from epd.identity import content_digest
from epd.telemetry.counters import Count
from tests.unit.tasks.flow_kit import Bench, MakeBench, png
from tests.unit.tasks.page_site import Site

IMAGE = Modality.IMAGE


@pytest.fixture
def site(site: Site) -> Site:
    site.headers = {"ETag": '"one"'}
    return site


def test_new_upload_goes_to_decode(bench: Bench) -> None:
    message = bench.job((IMAGE, bench.upload(png())))
    tally = bench.fetch(message)
    (decode,) = bench.outbox.decodes
    assert decode.digest == content_digest(png())
    assert decode.main is not None
    assert decode.audio is None
    assert decode.timings["fetch_queue"] == pytest.approx(1)
    assert tally["cache_misses"] == 1
    assert bench.part(message, "0.image").state is State.RUNNING


def test_url_is_downloaded_and_remembered(bench: Bench, site: Site) -> None:
    bench.fetch(bench.job((IMAGE, site.source)))
    (decode,) = bench.outbox.decodes
    assert bench.store.blobs.path(decode.blob).read_bytes() == png()
    assert site.statuses == [200]


def test_cached_upload_ends_at_once(bench: Bench) -> None:
    first = bench.job((IMAGE, bench.upload(png())))
    bench.complete(bench.wanted(first, IMAGE, content_digest(png())), content_digest(png()))
    bench.fetch(first)
    assert bench.part(first, "0.image").state is State.DONE
    assert bench.part(first, "0.image").cached
    assert not bench.outbox.decodes


def test_second_item_waits_for_the_first_flight(bench: Bench) -> None:
    source = bench.upload(png())
    one, two = bench.job((IMAGE, source)), bench.job((IMAGE, source))
    bench.fetch(one)
    bench.fetch(two)
    assert len(bench.outbox.decodes) == 1
    bench.complete(bench.wanted(one, IMAGE, content_digest(png())), content_digest(png()))
    assert bench.part(one, "0.image").state is State.DONE
    assert bench.part(two, "0.image").state is State.DONE


def test_waiting_item_leaves_no_download_behind(bench: Bench, site: Site) -> None:
    bench.fetch(bench.job((IMAGE, site.source)))
    bench.fetch(bench.job((IMAGE, site.source)))
    assert len(bench.outbox.decodes) == 1
    assert bench.files("s") == [bench.outbox.decodes[0].blob.name]


def test_a_message_delivered_twice_is_fetched_twice_and_loses_nothing(bench: Bench) -> None:
    message = bench.job((IMAGE, bench.upload(png())))
    bench.fetch(message)
    bench.fetch(message)
    assert [decode.main for decode in bench.outbox.decodes] == [bench.outbox.decodes[0].main] * 2


def test_304_answers_from_the_memo(bench: Bench, site: Site) -> None:
    first = bench.job((IMAGE, site.source))
    bench.fetch(first)
    wanted = bench.wanted(first, IMAGE, content_digest(png()))
    bench.complete(wanted, content_digest(png()), source_bytes=len(png()))
    bench.now += 2
    second = bench.job((IMAGE, site.source))
    assert bench.fetch(second)[Count.SAVED_BYTES] == len(png())
    assert site.statuses == [200, 304]
    assert bench.part(second, "0.image").cached


def test_memo_without_embedding_downloads_the_body(bench: Bench, site: Site) -> None:
    first = bench.job((IMAGE, site.source))
    bench.fetch(first)
    wanted = bench.wanted(first, IMAGE, content_digest(png()))
    bench.complete(wanted, content_digest(png()))
    bench.store.embeddings.remove([wanted.key])
    bench.fetch(bench.job((IMAGE, site.source)))
    assert site.statuses == [200, 200]
    assert len(bench.outbox.decodes) == 2


def test_fresh_memo_needs_no_request(make_bench: MakeBench, site: Site) -> None:
    bench = make_bench(url_ttl=100)
    first = bench.job((IMAGE, site.source))
    bench.fetch(first)
    bench.complete(bench.wanted(first, IMAGE, content_digest(png())), content_digest(png()))
    bench.fetch(bench.job((IMAGE, site.source)))
    assert site.statuses == [200]
    bench.now += 101
    bench.fetch(bench.job((IMAGE, site.source)))
    assert site.statuses == [200, 304]


def test_changed_content_is_another_embedding(bench: Bench, site: Site) -> None:
    first = bench.job((IMAGE, site.source))
    bench.fetch(first)
    bench.complete(bench.wanted(first, IMAGE, content_digest(png())), content_digest(png()))
    site.others["/b.png"] = png((0, 0, 255))
    bench.fetch(bench.job((IMAGE, site.at("/b.png"))))
    assert bench.outbox.decodes[-1].digest == content_digest(png((0, 0, 255)))


def test_expired_item_is_not_fetched(bench: Bench, site: Site) -> None:
    message = bench.job((IMAGE, site.source))
    bench.now += 61
    assert bench.fetch(message) == {"fetch_expired": 1}
    record = bench.part(message, "0.image")
    assert record.state is State.EXPIRED
    assert record.error is not None
    assert record.error.code == "deadline_exceeded"
    assert site.statuses == []


def test_cancelled_item_is_not_fetched(bench: Bench, site: Site) -> None:
    from epd.contracts.job import PartRecord

    message = bench.job((IMAGE, site.source))
    bench.store.jobs.close(message.job_id, PartRecord(state=State.CANCELLED))
    assert bench.fetch(message) == {"fetch_dropped": 1}
    assert site.statuses == []
    assert not bench.outbox.decodes


@pytest.mark.parametrize("late", [False, True], ids=["cancelled", "expired"])
@pytest.mark.parametrize("uploaded", [False, True], ids=["url", "upload"])
def test_a_flight_that_was_passed_on_to_a_dead_item_is_passed_on_again(
    bench: Bench, site: Site, late: bool, uploaded: bool
) -> None:
    """The owner is cancelled, then its successor before its message came up: the third waits for no lease."""
    from epd.contracts.job import PartRecord

    source = bench.upload(png()) if uploaded else site.source
    owner, successor, third = (bench.job((IMAGE, source)) for _ in range(3))
    for message in (owner, successor, third):
        bench.fetch(message)
    (decode,) = bench.outbox.decodes
    bench.store.jobs.close(owner.job_id, PartRecord(state=State.CANCELLED))
    bench.decode(decode)
    (first,) = bench.outbox.fetches
    other = {successor.job_id, third.job_id} - {first.job_id}
    if late:
        first = first.model_copy(update={"deadline": bench.now - 1})
    else:
        bench.store.jobs.close(first.job_id, PartRecord(state=State.CANCELLED))
    bench.fetch(first)
    assert {again.job_id for again in bench.outbox.fetches[1:]} == other
    bench.fetch(bench.outbox.fetches[1])
    assert bench.outbox.decodes[-1].job_id in other


def test_mixed_chunk_fails_only_its_bad_item(bench: Bench, site: Site) -> None:
    message = bench.job(
        (IMAGE, site.source), (IMAGE, site.at("/gone")), (IMAGE, bench.upload(png((1, 2, 3))))
    )
    tally = bench.fetch(message)
    assert sorted(decode.item.index for decode in bench.outbox.decodes) == [0, 2]
    record = bench.part(message, "1.image")
    assert record.state is State.FAILED
    assert record.error is not None
    assert record.error.code == "source_rejected"
    assert tally["fetch_failures"] == 1


@pytest.mark.parametrize("url", ["http://10.0.0.1/a.png", "file:///etc/passwd", "http://127.0.0.1@10.0.0.1/"])
def test_refused_source_fails(bench: Bench, url: str) -> None:
    message = bench.job((IMAGE, Source(url=url)))
    bench.fetch(message)
    assert bench.code(message, "0.image") == "source_refused"


def test_unknown_upload_fails(bench: Bench) -> None:
    message = bench.job((IMAGE, Source(media_id="f" * 64)))
    bench.fetch(message)
    assert bench.code(message, "0.image") == "not_found"


def test_encoder_that_is_not_there_yet_postpones_the_item(make_bench: MakeBench, site: Site) -> None:
    bench = make_bench()
    bench.store.cards.get = lambda names: [None] * len(names)  # type: ignore[method-assign]
    message = bench.job((IMAGE, site.source))
    bench.fetch(message)
    (again,) = bench.outbox.fetches
    assert again.items == message.items
    assert bench.outbox.countdowns == [1.0]
    assert site.statuses == []
    bench.now = message.deadline - 0.5
    bench.fetch(message)
    assert bench.code(message, "0.image") == "encoder_not_ready"


def test_full_blob_space_postpones_the_item(make_bench: MakeBench, site: Site) -> None:
    bench = make_bench(blob_bytes=1 << 20)
    bench.fill_blob_folder()
    bench.fetch(bench.job((IMAGE, site.source)))
    assert len(bench.outbox.fetches) == 1
    assert site.statuses == []


def test_broker_that_is_down_raises_and_leaves_no_file(bench: Bench, site: Site) -> None:
    message = bench.job((IMAGE, site.source))
    bench.outbox.down = True
    with pytest.raises(StoreUnavailable):
        bench.fetch(message)
    assert bench.files("s") == []
    bench.outbox.down = False
    bench.fetch(message)
    assert len(bench.outbox.decodes) == 1
