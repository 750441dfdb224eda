"""HTTP caching of sources: unchanged content is not sent again, and stale bytes are never served."""

from __future__ import annotations

import time
from email.utils import formatdate

import pytest

from epd.contracts.job import PartRecord, State
from epd.contracts.media import Modality
from epd.contracts.messages import FetchMessage
from epd.identity import content_digest
from tests.unit.tasks.flow_kit import Bench, MakeBench, png
from tests.unit.tasks.page_site import Site
from workers.fetch.response import Reuse, reuse_of

RED, BLUE = png((255, 0, 0)), png((0, 0, 255))
IMAGE = Modality.IMAGE
OLD, NOW = "Mon, 05 Oct 2026 07:28:00 GMT", "Mon, 05 Oct 2026 08:00:00 GMT"


@pytest.mark.parametrize(
    ("headers", "reuse"),
    [
        ({}, Reuse()),
        ({"ETag": '"a"', "Last-Modified": OLD, "Date": NOW}, Reuse(etag='"a"')),
        ({"ETag": 'W/"a"'}, Reuse(etag='W/"a"')),
        ({"ETag": "unquoted"}, Reuse(etag="unquoted")),
        ({"ETag": '"two words"'}, Reuse()),
        ({"ETag": '"' + "x" * 600 + '"'}, Reuse()),
        ({"Last-Modified": OLD, "Date": NOW}, Reuse(last_modified=OLD)),
        ({"Last-Modified": OLD, "Date": "Mon, 05 Oct 2026 07:28:01 GMT"}, Reuse()),
        ({"Last-Modified": OLD}, Reuse()),
        ({"Last-Modified": "yesterday", "Date": NOW}, Reuse()),
        ({"ETag": '"a"', "Cache-Control": "private, no-store"}, Reuse(max_age=0)),
        ({"ETag": '"a"', "Cache-Control": "No-Cache"}, Reuse(etag='"a"', max_age=0)),
        ({"ETag": '"a"', "Vary": "*"}, Reuse(etag='"a"', max_age=0)),
        ({"Vary": "Accept-Encoding"}, Reuse()),
        ({"Cache-Control": "max-age=60"}, Reuse(max_age=60)),
        ({"Cache-Control": 'max-age="60", s-maxage=5'}, Reuse(max_age=5)),
        ({"Cache-Control": "max-age=60", "Age": "50"}, Reuse(max_age=10)),
        ({"Cache-Control": "max-age=60", "Age": "90"}, Reuse(max_age=0)),
        ({"Cache-Control": "max-age=soon"}, Reuse()),
        ({"Cache-Control": "max-age=" + "9" * 40}, Reuse(max_age=999_999_999_999)),
        ({"Expires": NOW, "Date": OLD}, Reuse(max_age=1920)),
        ({"Expires": "0", "Date": OLD}, Reuse(max_age=0)),
    ],
)
def test_headers_of_an_answer(headers: dict[str, str], reuse: Reuse) -> None:
    assert reuse_of(headers) == reuse


def ask(bench: Bench, site: Site) -> tuple[FetchMessage, str]:
    """Two seconds later: fetch the page, and encode what is new; the digest that was served."""
    bench.now += 2
    message = bench.job((IMAGE, site.source))
    before = len(bench.outbox.decodes)
    bench.fetch(message)
    for decode in bench.outbox.decodes[before:]:
        assert decode.main is not None
        bench.complete(decode.main, decode.digest)
    record: PartRecord = bench.part(message, "0.image")
    assert record.state is State.DONE
    assert record.metadata is not None
    return message, record.metadata.content_digest


STRONG = {"ETag": '"one"'}
DATED = {"Last-Modified": OLD, "Date": NOW}


@pytest.mark.parametrize("headers", [STRONG, {"ETag": 'W/"one"'}, DATED], ids=["strong", "weak", "date"])
def test_unchanged_content_costs_no_body(bench: Bench, site: Site, headers: dict[str, str]) -> None:
    site.headers = headers
    digests = {ask(bench, site)[1] for _ in range(3)}
    assert digests == {content_digest(RED)}
    assert site.statuses == [200, 304, 304]
    assert len(bench.outbox.decodes) == 1


@pytest.mark.parametrize("headers", [{}, {"Last-Modified": NOW, "Date": NOW}], ids=["none", "just changed"])
def test_without_a_validator_that_can_be_trusted_the_body_is_sent_again(
    bench: Bench, site: Site, headers: dict[str, str]
) -> None:
    """A date of this very second is no proof: the page may have changed again since."""
    site.headers = headers
    ask(bench, site)
    site.body = BLUE
    assert ask(bench, site)[1] == content_digest(BLUE)
    assert site.statuses == [200, 200]


def test_changed_content_is_served_at_once(bench: Bench, site: Site) -> None:
    site.headers = STRONG
    ask(bench, site)
    site.body, site.headers = BLUE, {"ETag": '"two"'}
    assert ask(bench, site)[1] == content_digest(BLUE)
    assert ask(bench, site)[1] == content_digest(BLUE)
    assert site.statuses == [200, 200, 304]


def test_another_tag_for_the_same_bytes_is_the_same_embedding(bench: Bench, site: Site) -> None:
    site.headers = STRONG
    ask(bench, site)
    site.headers = {"ETag": '"two"'}
    assert ask(bench, site)[1] == content_digest(RED)
    assert site.statuses == [200, 200]
    assert len(bench.outbox.decodes) == 1


def test_one_tag_for_two_contents_is_trusted(bench: Bench, site: Site) -> None:
    """Only the body could show it; docs/operations.md says so."""
    site.headers = STRONG
    ask(bench, site)
    site.body = BLUE
    assert ask(bench, site)[1] == content_digest(RED)


def test_a_304_that_nobody_asked_for_fails_the_item(bench: Bench, site: Site) -> None:
    site.headers = {}
    ask(bench, site)
    site.headers, site.lies = STRONG, True
    ask(bench, site)
    assert site.statuses == [200, 200]
    assert "If-None-Match" not in site.seen[1][2]


def test_a_tag_is_not_sent_to_where_a_redirect_points_now(bench: Bench, site: Site) -> None:
    """Two files may both have the tag "one"."""
    site.headers, site.moved_to = STRONG, "/v1"
    ask(bench, site)
    ask(bench, site)
    assert site.statuses == [302, 200, 302, 304]
    site.body, site.moved_to = BLUE, "/v2"
    assert ask(bench, site)[1] == content_digest(BLUE)
    assert site.statuses[4:] == [302, 200]


def test_the_freshness_window_is_an_upper_bound(make_bench: MakeBench, site: Site) -> None:
    bench = make_bench(url_ttl=100)
    site.headers = STRONG
    ask(bench, site)
    ask(bench, site)
    assert site.statuses == [200]
    site.body, site.headers = BLUE, {"ETag": '"two"'}
    bench.now += 100
    assert ask(bench, site)[1] == content_digest(BLUE)


@pytest.mark.parametrize(
    "control", ["no-cache", "max-age=1", "max-age=0, must-revalidate"], ids=["no-cache", "short", "zero"]
)
def test_a_server_may_shorten_the_window(make_bench: MakeBench, site: Site, control: str) -> None:
    bench = make_bench(url_ttl=100)
    site.headers = STRONG | {"Cache-Control": control}
    for _ in range(3):
        ask(bench, site)
    assert site.statuses == [200, 304, 304]


def test_uncacheable_answers_are_requested_each_time(make_bench: MakeBench, site: Site) -> None:
    bench = make_bench(url_ttl=100)
    site.headers = STRONG | {"Cache-Control": "no-store"}
    for _ in range(2):
        ask(bench, site)
    assert site.statuses == [200, 200]
    assert len(bench.outbox.decodes) == 1, "the embedding belongs to the bytes, not to their sender"


def test_a_download_that_began_after_the_request_came_answers_it(bench: Bench, site: Site) -> None:
    waits = bench.job((IMAGE, site.source)).model_copy(update={"enqueued_at": bench.now + 1})
    ask(bench, site)
    bench.fetch(waits)
    assert site.statuses == [200]
    assert bench.part(waits, "0.image").cached


def test_an_unchanged_page_whose_embedding_is_in_the_making_costs_no_body(bench: Bench, site: Site) -> None:
    site.headers = STRONG
    first, second = bench.job((IMAGE, site.source)), None
    bench.fetch(first)
    bench.now += 15  # too late to share its download
    second = bench.job((IMAGE, site.source))
    bench.fetch(second)
    assert site.statuses == [200, 304]
    (decode,) = bench.outbox.decodes
    assert decode.main is not None
    bench.complete(decode.main, decode.digest)
    assert bench.part(second, "0.image").state is State.DONE


def test_a_date_of_now_is_settled_two_seconds_later() -> None:
    now = time.time()
    headers = {"Last-Modified": formatdate(now - 2, usegmt=True), "Date": formatdate(now, usegmt=True)}
    assert reuse_of(headers).last_modified == headers["Last-Modified"]
