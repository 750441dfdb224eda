"""Data URIs and base64: every variant of case NET-12, and what must be refused."""

from __future__ import annotations

import base64
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from api.encode.sources import decode_base64, decode_data_uri, is_data_uri
from epd.contracts.errors import CallerFault, EmptyMedia, InvalidRequest, UnsupportedMedia

pytestmark = pytest.mark.unit

# Bytes whose base64 has "+", "/", and one "=" of padding.
DATA = bytes(range(256)) + b"\xfb\xff\xfe" * 3 + b"\x01"
PLAIN = base64.b64encode(DATA).decode()
URL_SAFE = base64.urlsafe_b64encode(DATA).decode()
FOLDED = "\r\n".join(PLAIN[at : at + 76] for at in range(0, len(PLAIN), 76))

ACCEPTED = {
    "plain": f"data:image/png;base64,{PLAIN}",
    "param": f"data:image/png;charset=utf-8;base64,{PLAIN}",
    "two-params": f"data:image/png;name=a.png;charset=utf-8;base64,{PLAIN}",
    "upper": f"DATA:IMAGE/PNG;BASE64,{PLAIN}",
    "no-mime": f"data:;base64,{PLAIN}",
    "folded": f"data:image/png;base64,{FOLDED}",
    "url-safe": f"data:image/png;base64,{URL_SAFE}",
    "no-padding": f"data:image/png;base64,{PLAIN.rstrip('=')}",
    "pct-padding": f"data:image/png;base64,{quote(PLAIN, safe='')}",
    "wrong-mime": f"data:image/jpeg;base64,{PLAIN}",
}
REFUSED: dict[str, tuple[str, type[CallerFault]]] = {
    "spaces-for-plus": (f"data:image/png;base64,{PLAIN.replace('+', ' ')}", InvalidRequest),
    "no-base64-mark": (f"data:image/png,{PLAIN}", InvalidRequest),
    "base64-as-mime": (f"data:base64,{PLAIN}", InvalidRequest),
    "no-comma": (f"data:image/png;base64{PLAIN}", InvalidRequest),
    "empty": ("data:image/png;base64,", EmptyMedia),
    "only-padding": ("data:image/png;base64,====", InvalidRequest),
    "junk": ("data:image/png;base64,not!!!base64!!!", InvalidRequest),
    "text-type": ("data:text/plain;base64,aGVsbG8=", UnsupportedMedia),
    "svg-text": ("data:image/svg+xml,%3Csvg%3E", UnsupportedMedia),
    "cut": (f"data:image/png;base64,{PLAIN[: len(PLAIN) // 2 // 4 * 4 + 2]}", InvalidRequest),
    "one-left-over": (f"data:image/png;base64,{PLAIN[:41]}", InvalidRequest),
    "mixed": ("data:image/png;base64,ab+_", InvalidRequest),
    "after-padding": ("data:image/png;base64,QQ==QQ==", InvalidRequest),
    "unicode": ("data:image/png;base64,QUJD\u00e9", InvalidRequest),
    "nul": ("data:image/png;base64,QUJD%00", InvalidRequest),
}


@pytest.mark.parametrize("uri", ACCEPTED.values(), ids=ACCEPTED)
def test_accepted_forms_give_the_same_bytes(uri: str) -> None:
    assert is_data_uri(uri)
    assert decode_data_uri(uri) == DATA


@pytest.mark.parametrize(("uri", "error"), REFUSED.values(), ids=REFUSED)
def test_refused_forms_give_a_typed_error(uri: str, error: type[CallerFault]) -> None:
    with pytest.raises(error):
        decode_data_uri(uri)


def test_plain_base64_follows_the_same_rules() -> None:
    assert decode_base64(FOLDED) == decode_base64(URL_SAFE) == DATA
    with pytest.raises(InvalidRequest):
        decode_base64("=" + PLAIN)
    with pytest.raises(EmptyMedia):
        decode_base64("")


@given(st.binary(min_size=1, max_size=300))
def test_any_bytes_come_back(data: bytes) -> None:
    assert decode_base64(base64.b64encode(data).decode()) == data
    assert decode_base64(base64.urlsafe_b64encode(data).decode().rstrip("=")) == data


@given(st.text(max_size=60))
def test_any_text_is_bytes_or_a_caller_fault(text: str) -> None:
    for decode in (decode_base64, lambda value: decode_data_uri("data:image/png;base64," + value)):
        try:
            decode(text)
        except CallerFault:
            continue
