"""What an answer says of its own reuse: for how long, and how to ask later whether it still holds.

Source: RFC 9110 (validators, 8.8 and 13) and RFC 9111 (freshness, 4.2 and 5.2). Nothing here keeps a body:
what is remembered of a URL is the digest of its bytes, and these rules say when that may be believed.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from email.utils import parsedate_to_datetime

#: What an entity tag may look like, quoted or not; longer ones would be paid for with every remembered URL.
_TAG = re.compile(r"[\x21-\x7e\x80-\xff]{1,512}")


@dataclass(frozen=True, kw_only=True, slots=True)
class Reuse:
    """``max_age`` is seconds for which the answer may be believed unasked; None: it does not say."""

    etag: str | None = None
    last_modified: str | None = None
    max_age: float | None = None


def reuse_of(headers: Mapping[str, str]) -> Reuse:
    """Read an answer's headers.

    ``no-store`` leaves nothing to ask with, so that the next request downloads anew. An entity tag is taken
    alone: a server that looks at the date instead of it could not tell two changes in one second apart. For
    the same reason a date alone counts only when it was over a second old as it was sent.
    """
    directives = dict(_directives(headers.get("Cache-Control", "")))
    if "no-store" in directives:
        return Reuse(max_age=0.0)
    age = _max_age(headers, directives)
    tag = headers.get("ETag")
    if tag is not None:
        return Reuse(etag=tag if _TAG.fullmatch(tag) else None, max_age=age)
    return Reuse(last_modified=_settled_date(headers), max_age=age)


def _directives(text: str) -> Iterator[tuple[str, str]]:
    for part in text.split(","):
        name, _, value = part.strip().partition("=")
        yield name.lower(), value.strip('"')


def _max_age(headers: Mapping[str, str], directives: Mapping[str, str]) -> float | None:
    """Several requests share what is remembered, so ``s-maxage`` goes before ``max-age``.

    Requests are all alike, so of ``Vary`` only ``*`` matters: it fits no later request.
    """
    if "no-cache" in directives or headers.get("Vary", "").strip() == "*":
        return 0.0
    for name in ("s-maxage", "max-age"):
        if directives.get(name, "").isdecimal():
            age = headers.get("Age", "")
            return max(0.0, float(directives[name][:12]) - (float(age[:12]) if age.isdecimal() else 0.0))
    if "Expires" not in headers:
        return None
    sent, expires = _moment(headers.get("Date")), _moment(headers.get("Expires"))
    return max(0.0, expires - sent) if sent is not None and expires is not None else 0.0


def _settled_date(headers: Mapping[str, str]) -> str | None:
    changed, sent = _moment(headers.get("Last-Modified")), _moment(headers.get("Date"))
    settled = changed is not None and sent is not None and sent - changed > 1.0
    return headers.get("Last-Modified") if settled else None


def _moment(text: str | None) -> float | None:
    """Unix seconds of an HTTP date; None where there is none or it cannot be read."""
    try:
        return None if text is None else parsedate_to_datetime(text).timestamp()
    except (ValueError, OverflowError):
        return None
