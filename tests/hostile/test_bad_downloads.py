"""Servers that hang, lie, redirect inwards and break off, against ``workers.fetch.download``."""

from __future__ import annotations

import hashlib
import io
import socket
import threading
import time
import tracemalloc
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from epd.contracts.errors import (
    EpdError,
    InvalidRequest,
    MediaTooLarge,
    SourceRefused,
    SourceRejected,
    SourceTimeout,
    SourceUnavailable,
)
from tests.hostile.bad_server import PNG, SIGNED, BadServer
from workers.fetch.download import Downloaded, Validators, download
from workers.limits import FetchLimits


@pytest.fixture
def limits(bad_server: BadServer) -> FetchLimits:
    bad_server.hits.clear()
    return FetchLimits(
        max_bytes=1 << 20,
        allow_hosts=(bad_server.authority,),
        connect_timeout=1,
        read_timeout=1,
        total_timeout=5,
    )


def fetch(url: str, limits: FetchLimits, validators: Validators | None = None) -> tuple[Downloaded, bytes]:
    file = io.BytesIO()
    got = download(url, into=file, limits=limits, validators=validators)
    return got, file.getvalue()


@pytest.mark.parametrize(
    "target", ["/ok.png", "/redir-rel", "/gzip", "/gzip-gzip", "/503-twice", "/short-body"]
)
def test_whole_body_arrives_whatever_way_it_took(
    bad_server: BadServer, limits: FetchLimits, target: str
) -> None:
    got, body = fetch(bad_server.url(target), limits)
    assert body == PNG
    assert got.digest == hashlib.sha256(PNG).hexdigest()
    assert got.nbytes == len(PNG)
    assert bad_server.hits[target] == {"/503-twice": 3, "/short-body": 3}.get(target, 1)


@pytest.mark.parametrize(
    ("target", "error", "hits"),
    [
        ("/redir-meta", SourceRefused, 1),
        ("/redir-canary", SourceRefused, 1),
        ("/redir-canary6", SourceRefused, 1),
        ("/redir-file", SourceRefused, 1),
        ("/redir-login", SourceRefused, 1),
        ("/redir-nowhere", SourceRejected, 1),
        ("/redir-loop", SourceRejected, 6),
        ("/endless", MediaTooLarge, 1),
        ("/huge-length", MediaTooLarge, 1),
        ("/gzip-lie", SourceRejected, 1),
        ("/brotli-lie", SourceRejected, 1),
        ("/304", SourceRejected, 1),
        ("/404-image", SourceRejected, 1),
        ("/206", SourceRejected, 1),
        ("/403-always", SourceRejected, 1),
        ("/500-always", SourceUnavailable, 3),
        ("/503-always", SourceUnavailable, 1),
        ("/broken-chunks", SourceUnavailable, 3),
    ],
)
def test_bad_answers_have_their_error_and_their_number_of_tries(
    bad_server: BadServer, limits: FetchLimits, target: str, error: type[EpdError], hits: int
) -> None:
    began = time.monotonic()
    with pytest.raises(error) as caught:
        fetch(bad_server.url(target), limits)
    assert time.monotonic() - began < 4
    assert bad_server.hits[target] == hits
    assert bad_server.hits["/canary"] == 0
    assert str(bad_server.port) not in str(caught.value)


def test_retry_after_is_waited_for(bad_server: BadServer, limits: FetchLimits) -> None:
    began = time.monotonic()
    _, body = fetch(bad_server.url("/429"), limits)
    assert body == PNG
    assert time.monotonic() - began >= 1.0
    assert bad_server.hits["/429"] == 2


def test_a_compression_bomb_costs_little_memory(bad_server: BadServer, limits: FetchLimits) -> None:
    tracemalloc.start()
    try:
        with pytest.raises(MediaTooLarge):
            fetch(
                bad_server.url("/gzip-bomb"),
                replace(limits, max_bytes=8 << 20, read_timeout=5, total_timeout=20),
            )
        assert tracemalloc.get_traced_memory()[1] < 48 << 20
    finally:
        tracemalloc.stop()


def test_a_signed_url_goes_out_as_it_was_written(bad_server: BadServer, limits: FetchLimits) -> None:
    _, body = fetch(bad_server.url(SIGNED), limits)
    assert body == PNG
    assert list(bad_server.hits) == [SIGNED]


def test_an_unchanged_source_is_not_sent_again(bad_server: BadServer, limits: FetchLimits) -> None:
    first, _ = fetch(bad_server.url("/changing.png"), limits)
    again, body = fetch(
        bad_server.url("/changing.png"),
        limits,
        Validators(answered_by=first.answered_by, etag=first.reuse.etag),
    )
    assert first.reuse.etag == '"a"'
    assert not first.not_modified
    assert again.not_modified
    assert body == b""


def test_cookies_and_proxies_stay_out(
    bad_server: BadServer, limits: FetchLimits, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    fetch(bad_server.url("/cookie"), limits)
    fetch(bad_server.url("/ok.png"), limits)
    assert "cookie" not in bad_server.last_headers
    assert "authorization" not in bad_server.last_headers
    assert bad_server.last_headers["host"] == bad_server.authority


def test_a_connection_is_used_again(bad_server: BadServer, limits: FetchLimits) -> None:
    fetch(bad_server.url("/ok.png"), limits)
    before = bad_server.connections
    for _ in range(5):
        fetch(bad_server.url("/ok.png"), limits)
    assert bad_server.connections == before


def test_threads_keep_their_downloads_apart(bad_server: BadServer, limits: FetchLimits) -> None:
    targets = [
        "/ok.png",
        "/gzip",
        "/404-image",
        "/endless",
        "/redir-rel",
        "/redir-meta",
        "/503-twice",
        "/ok.png",
    ]

    def outcome(target: str) -> str:
        try:
            return fetch(bad_server.url(f"{target}?{threading.get_ident()}"), limits)[0].digest
        except EpdError as error:
            return error.code

    good = hashlib.sha256(PNG).hexdigest()
    want = [good, good, "source_rejected", "media_too_large", good, "source_refused", good, good]
    with ThreadPoolExecutor(16) as pool:
        assert list(pool.map(outcome, targets * 4)) == want * 4


@pytest.mark.parametrize(
    "host",
    [
        "127.0.0.1",
        "2130706433",
        "0177.0.0.1",
        "0x7f.1",
        "[::1]",
        "[::ffff:127.0.0.1]",
        "[64:ff9b::7f00:1]",
        "[2002:7f00:1::]",
        "169.254.169.254",
        "100.64.0.1",
        "0.0.0.0",
        "10.0.0.1",
        "172.16.0.1",
        "192.168.0.1",
        "224.0.0.1",
        "localhost",
    ],
)
def test_private_addresses_are_refused_in_every_spelling(
    bad_server: BadServer, limits: FetchLimits, host: str
) -> None:
    with pytest.raises(SourceRefused):
        fetch(f"http://{host}:{bad_server.port}/canary", replace(limits, allow_hosts=()))
    assert not bad_server.hits


@pytest.mark.parametrize(
    ("url", "error"),
    [
        ("file:///etc/hostname", SourceRefused),
        ("FILE:///etc/hostname", SourceRefused),
        ("ftp://example.org/a.png", SourceRefused),
        ("/etc/hostname", SourceRefused),
        ("../x", SourceRefused),
        ("http://user:secret@example.org/", SourceRefused),
        ("http:///x.png", InvalidRequest),
        ("http://exa mple.org/", InvalidRequest),
        ("http://example.org\\@127.0.0.1/", InvalidRequest),
        ("http://example.org:99999/", InvalidRequest),
        ("http://example.org/\r\nHost: x", InvalidRequest),
        ("http://[::1/", InvalidRequest),
    ],
)
def test_urls_that_are_never_dialled(limits: FetchLimits, url: str, error: type[EpdError]) -> None:
    with pytest.raises(error) as caught:
        fetch(url, limits)
    assert "secret" not in str(caught.value)


def test_a_rebinding_name_is_dialled_at_the_address_that_was_checked(
    bad_server: BadServer, limits: FetchLimits, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = iter(["203.0.113.7", "93.184.216.34"])
    asked: list[str] = []

    def resolver(host: str, port: int, *_: object, **__: object) -> list[object]:
        asked.append(host)
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (next(answers, "127.0.0.1"), port))]

    monkeypatch.setattr(socket, "getaddrinfo", resolver)
    few = replace(limits, retries=0, connect_timeout=0.3, total_timeout=2)
    with pytest.raises(SourceRefused):  # 203.0.113.0/24 is for documentation, not public
        fetch(f"http://rebind.test:{bad_server.port}/canary", few)
    with pytest.raises((SourceTimeout, SourceUnavailable)):
        fetch(f"http://rebind.test:{bad_server.port}/canary", few)
    assert asked == ["rebind.test", "rebind.test"]
    assert not bad_server.hits


def test_a_mixed_answer_is_refused(limits: FetchLimits, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (ip, 80)) for ip in ("93.184.216.34", "127.0.0.1")]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: rows)
    with pytest.raises(SourceRefused):
        fetch("http://mixed.test/", limits)


def test_a_resolver_that_hangs_is_not_waited_for(
    limits: FetchLimits, monkeypatch: pytest.MonkeyPatch
) -> None:
    free = threading.Event()
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: free.wait(20) and [])
    began = time.monotonic()
    with pytest.raises(SourceTimeout):
        fetch("http://slow.test/", replace(limits, retries=0))
    free.set()
    assert time.monotonic() - began < 2


def test_tls_names_the_host_of_the_url(limits: FetchLimits, monkeypatch: pytest.MonkeyPatch) -> None:
    hello: list[bytes] = []
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        row = (socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", port))
        monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: [row])

        def answer() -> None:
            peer, _ = listener.accept()
            with peer:
                hello.append(peer.recv(4096))

        thread = threading.Thread(target=answer, daemon=True)
        thread.start()
        with pytest.raises(SourceUnavailable):
            fetch(f"https://media.test:{port}/a.png", replace(limits, retries=0, allow_hosts=("media.test",)))
        thread.join(5)
    assert b"media.test" in hello[0]
