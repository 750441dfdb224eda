"""The pure parts of fetching: URLs, addresses, allow lists, Retry-After, limits from settings."""

from __future__ import annotations

import contextlib
import ipaddress
import time
from email.utils import formatdate

import pytest
from hypothesis import given
from hypothesis import strategies as st

from epd.contracts.errors import CallerFault
from epd.contracts.media import Modality
from epd.settings import Settings
from workers.fetch.guard import check_url, is_allowed_host, is_public
from workers.fetch.response import delay_of
from workers.limits import decode_limits, fetch_limits


@pytest.mark.parametrize(
    ("url", "host", "port", "path"),
    [
        ("http://example.org", "example.org", 80, "/"),
        ("HTTPS://Example.org:8443/a%2fb?x=%41#part", "example.org", 8443, "/a%2fb?x=%41"),
        ("https://[2001:4860::1]/?", "2001:4860::1", 443, "/"),
        ("http://example.org/ä?ö", "example.org", 80, "/%C3%A4?%C3%B6"),
        ("http://example.org/a;b='c'?|", "example.org", 80, "/a;b='c'?|"),
    ],
)
def test_a_url_is_taken_apart_without_being_rewritten(url: str, host: str, port: int, path: str) -> None:
    target = check_url(url)
    assert (target.host, target.port, target.path) == (host, port, path)


@given(st.text(max_size=60))
def test_any_text_is_a_target_or_a_callers_fault(text: str) -> None:
    for url in (text, f"http://{text}", f"https://example.org{text}"):
        with contextlib.suppress(CallerFault):
            assert check_url(url).path.isascii()


@pytest.mark.parametrize(
    ("address", "public"),
    [
        ("8.8.8.8", True),
        ("2606:4700::1111", True),
        ("64:ff9b::808:808", True),
        ("127.0.0.1", False),
        ("100.64.0.1", False),
        ("198.18.0.1", False),
        ("240.0.0.1", False),
        ("255.255.255.255", False),
        ("224.0.0.251", False),
        ("::", False),
        ("::1", False),
        ("::ffff:10.0.0.1", False),
        ("fe80::1", False),
        ("fec0::1", False),
        ("fc00::1", False),
        ("ff02::1", False),
        ("2002:a00:1::", False),
        ("2001:0:808:808::f5ff:fffe", False),
        ("64:ff9b::a00:1", False),
    ],
)
def test_public_addresses(address: str, public: bool) -> None:
    assert is_public(ipaddress.ip_address(address)) is public


def test_the_allow_list_takes_a_host_or_a_host_with_its_port() -> None:
    assert is_allowed_host("Localhost", 8080, ("localhost",))
    assert is_allowed_host("localhost", 8080, ("other", "LOCALHOST:8080"))
    assert is_allowed_host("::1", 80, ("[::1]:80",))
    assert not is_allowed_host("localhost", 8081, ("localhost:8080",))
    assert not is_allowed_host("sub.localhost", 80, ("localhost",))
    assert not is_allowed_host("localhost", 80, ())


def test_retry_after_in_seconds_or_as_a_date() -> None:
    assert delay_of({"Retry-After": " 7 "}) == 7
    assert delay_of({"Retry-After": formatdate(time.time() + 30, usegmt=True)}) == pytest.approx(30, abs=2)
    assert delay_of({"Retry-After": formatdate(time.time() - 30, usegmt=True)}) == 0
    assert delay_of({"Retry-After": "soon"}) is None
    assert delay_of({"Retry-After": "-3"}) is None
    assert delay_of({"Retry-After": "9" * 400}) is None
    assert delay_of({}) is None


def test_limits_come_from_the_settings() -> None:
    settings = Settings(max_image_bytes=11, max_video_bytes=22, max_audio_bytes=33, fetch_allow_hosts=("a",))
    assert [fetch_limits(settings, modality).max_bytes for modality in Modality] == [11, 22, 33]
    assert fetch_limits(settings, Modality.IMAGE).allow_hosts == ("a",)
    assert decode_limits(Settings(decode_timeout=3)).timeout == 3
