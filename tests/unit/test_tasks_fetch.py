"""Fetch over a store: cached, waiting, owned, postponed, failed, and chunks of all of them."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from tasks_kit import Bench, png

from epd.contracts.errors import StoreUnavailable
from epd.contracts.job import State
from epd.contracts.media import Modality, Source
from epd.identity import content_digest
from epd.telemetry.counters import Count
from tests.store_kit import Stores

IMAGE = Modality.IMAGE


@pytest.fixture
def bench(tmp_path: Path, stores: Stores) -> Bench:
    return Bench(tmp_path, stores)


class Site(ThreadingHTTPServer):
    pages: dict[str, bytes]
    statuses: list[int]


class Pages(BaseHTTPRequestHandler):
    server: Site

    def do_GET(self) -> None:
        body = self.server.pages.get(self.path)
        known = self.headers.get("If-None-Match") == f'"{self.path}"'
        status = 404 if body is None else 304 if known else 200
        self.server.statuses.append(status)
        self.send_response(status)
        self.send_header("ETag", f'"{self.path}"')
        self.send_header("Content-Length", str(len(body or b"") if status == 200 else 0))
        self.end_headers()
        if status == 200 and body:
            self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def site() -> Iterator[Site]:
    server = Site(("127.0.0.1", 0), Pages)
    server.pages, server.statuses = {"/a.png": png()}, []
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    yield server
    server.shutdown()
    server.server_close()
    thread.join(5)


def at(site: Site, path: str = "/a.png") -> Source:
    return Source(url=f"http://127.0.0.1:{site.server_port}{path}")


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
    bench.fetch(bench.job((IMAGE, at(site))))
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
    bench.fetch(bench.job((IMAGE, at(site))))
    bench.fetch(bench.job((IMAGE, at(site))))
    assert len(bench.outbox.decodes) == 1
    assert bench.files("s") == [bench.outbox.decodes[0].blob.name]


def test_the_same_message_twice_flies_twice_and_loses_nothing(bench: Bench) -> None:
    message = bench.job((IMAGE, bench.upload(png())))
    bench.fetch(message)
    bench.fetch(message)
    assert [decode.main for decode in bench.outbox.decodes] == [bench.outbox.decodes[0].main] * 2


def test_304_answers_from_the_memo(bench: Bench, site: Site) -> None:
    first = bench.job((IMAGE, at(site)))
    bench.fetch(first)
    wanted = bench.wanted(first, IMAGE, content_digest(png()))
    bench.complete(wanted, content_digest(png()), source_bytes=len(png()))
    bench.now += 2
    second = bench.job((IMAGE, at(site)))
    assert bench.fetch(second)[Count.SAVED_BYTES] == len(png())
    assert site.statuses == [200, 304]
    assert bench.part(second, "0.image").cached


def test_memo_without_embedding_downloads_the_body(bench: Bench, site: Site) -> None:
    first = bench.job((IMAGE, at(site)))
    bench.fetch(first)
    wanted = bench.wanted(first, IMAGE, content_digest(png()))
    bench.complete(wanted, content_digest(png()))
    bench.store.embeddings.remove([wanted.key])
    bench.fetch(bench.job((IMAGE, at(site))))
    assert site.statuses == [200, 200]
    assert len(bench.outbox.decodes) == 2


def test_fresh_memo_needs_no_request(tmp_path: Path, stores: Stores, site: Site) -> None:
    bench = Bench(tmp_path, stores, url_ttl=100)
    first = bench.job((IMAGE, at(site)))
    bench.fetch(first)
    bench.complete(bench.wanted(first, IMAGE, content_digest(png())), content_digest(png()))
    bench.fetch(bench.job((IMAGE, at(site))))
    assert site.statuses == [200]
    bench.now += 101
    bench.fetch(bench.job((IMAGE, at(site))))
    assert site.statuses == [200, 304]


def test_changed_content_is_another_embedding(bench: Bench, site: Site) -> None:
    first = bench.job((IMAGE, at(site)))
    bench.fetch(first)
    bench.complete(bench.wanted(first, IMAGE, content_digest(png())), content_digest(png()))
    site.pages["/b.png"] = png((0, 0, 255))
    bench.fetch(bench.job((IMAGE, at(site, "/b.png"))))
    assert bench.outbox.decodes[-1].digest == content_digest(png((0, 0, 255)))


def test_expired_item_is_not_fetched(bench: Bench, site: Site) -> None:
    message = bench.job((IMAGE, at(site)))
    bench.now += 61
    assert bench.fetch(message) == {"fetch_expired": 1}
    record = bench.part(message, "0.image")
    assert record.state is State.EXPIRED
    assert record.error is not None
    assert record.error.code == "deadline_exceeded"
    assert site.statuses == []


def test_cancelled_item_is_not_fetched(bench: Bench, site: Site) -> None:
    from epd.contracts.job import PartRecord

    message = bench.job((IMAGE, at(site)))
    bench.store.jobs.close(message.job_id, PartRecord(state=State.CANCELLED))
    assert bench.fetch(message) == {"fetch_dropped": 1}
    assert site.statuses == []
    assert not bench.outbox.decodes


@pytest.mark.parametrize("late", [False, True], ids=["cancelled", "expired"])
@pytest.mark.parametrize("uploaded", [False, True], ids=["url", "upload"])
def test_a_flight_that_was_passed_on_to_a_dead_item_is_passed_on_again(
    bench: Bench, site: Site, late: bool, uploaded: bool
) -> None:
    """The owner is cancelled, then its heir before its message came up: the third waits for no lease."""
    from epd.contracts.job import PartRecord
    from tasks.flow.decode_item import decode_item

    source = bench.upload(png()) if uploaded else at(site)
    owner, heir, third = (bench.job((IMAGE, source)) for _ in range(3))
    for message in (owner, heir, third):
        bench.fetch(message)
    (decode,) = bench.outbox.decodes
    bench.store.jobs.close(owner.job_id, PartRecord(state=State.CANCELLED))
    decode_item(bench.context, decode)
    (first,) = bench.outbox.fetches
    other = {heir.job_id, third.job_id} - {first.job_id}
    if late:
        first = first.model_copy(update={"deadline": bench.now - 1})
    else:
        bench.store.jobs.close(first.job_id, PartRecord(state=State.CANCELLED))
    bench.fetch(first)
    assert {again.job_id for again in bench.outbox.fetches[1:]} == other
    bench.fetch(bench.outbox.fetches[1])
    assert bench.outbox.decodes[-1].job_id in other


def test_mixed_chunk_fails_only_its_bad_item(bench: Bench, site: Site) -> None:
    message = bench.job((IMAGE, at(site)), (IMAGE, at(site, "/gone")), (IMAGE, bench.upload(png((1, 2, 3)))))
    tally = bench.fetch(message)
    assert [decode.item.index for decode in bench.outbox.decodes] == [0, 2]
    record = bench.part(message, "1.image")
    assert record.state is State.FAILED
    assert record.error is not None
    assert record.error.code == "source_rejected"
    assert tally["fetch_failures"] == 1


@pytest.mark.parametrize("url", ["http://10.0.0.1/a.png", "file:///etc/passwd", "http://127.0.0.1@10.0.0.1/"])
def test_refused_source_fails(bench: Bench, url: str) -> None:
    message = bench.job((IMAGE, Source(url=url)))
    bench.fetch(message)
    error = bench.part(message, "0.image").error
    assert error is not None
    assert error.code == "source_refused"


def test_unknown_upload_fails(bench: Bench) -> None:
    message = bench.job((IMAGE, Source(media_id="f" * 64)))
    bench.fetch(message)
    error = bench.part(message, "0.image").error
    assert error is not None
    assert error.code == "not_found"


def test_encoder_that_is_not_there_yet_postpones_the_item(tmp_path: Path, stores: Stores, site: Site) -> None:
    bench = Bench(tmp_path, stores)
    bench.store.cards.get = lambda names: [None] * len(names)  # type: ignore[method-assign]
    message = bench.job((IMAGE, at(site)))
    bench.fetch(message)
    (again,) = bench.outbox.fetches
    assert again.items == message.items
    assert bench.outbox.countdowns == [1.0]
    assert site.statuses == []
    bench.now = message.deadline - 0.5
    bench.fetch(message)
    error = bench.part(message, "0.image").error
    assert error is not None
    assert error.code == "encoder_not_ready"


def test_full_blob_space_postpones_the_item(tmp_path: Path, stores: Stores, site: Site) -> None:
    bench = Bench(tmp_path, stores, blob_bytes=1 << 20)
    (tmp_path / "blobs").mkdir()
    (tmp_path / "blobs" / "s-other").write_bytes(bytes((1 << 20) + 1))
    bench.fetch(bench.job((IMAGE, at(site))))
    assert len(bench.outbox.fetches) == 1
    assert site.statuses == []


def test_broker_that_is_down_raises_and_leaves_no_file(bench: Bench, site: Site) -> None:
    message = bench.job((IMAGE, at(site)))
    bench.outbox.down = True
    with pytest.raises(StoreUnavailable):
        bench.fetch(message)
    assert bench.files("s") == []
    bench.outbox.down = False
    bench.fetch(message)
    assert len(bench.outbox.decodes) == 1
