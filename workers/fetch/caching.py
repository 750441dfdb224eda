"""What an answer's headers say about its reuse: for how long it is fresh, and how to revalidate it.

Source: RFC 9110 (validators, 8.8 and 13) and RFC 9111 (freshness, 4.2 and 5.2). No body is stored here. A
memo of a URL holds the digest of its bytes, and these rules say for how long the memo is valid.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from email.utils import parsedate_to_datetime

#: An entity tag, quoted or not, of at most 512 characters: a longer one would make every memo large.
_TAG = re.compile(r"[\x21-\x7e\x80-\xff]{1,512}")


@dataclass(frozen=True, kw_only=True, slots=True)
class Reuse:
    """How an answer may be reused.

    Attributes:
        etag: entity tag to revalidate with.
        last_modified: HTTP date to revalidate with.
        max_age: seconds for which the answer is fresh; None if it does not say.
    """

    etag: str | None = None
    last_modified: str | None = None
    max_age: float | None = None


def reuse_of(headers: Mapping[str, str]) -> Reuse:
    """Read the headers of an answer.

    After ``no-store`` there is nothing to revalidate with, so the next request downloads again. Next to an
    entity tag the date is left out: a server that compares dates instead could not distinguish two changes
    within one second. For the same reason a date counts only if it was over a second old when it was sent.
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
    """Seconds for which an answer is fresh; None if it does not say.

    A memo is shared by many requests, so ``s-maxage`` precedes ``max-age``. All requests have the same
    headers, so the only ``Vary`` that matters is ``*``, which matches no later request.
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
    """Unix seconds of an HTTP date; None if there is none or it cannot be parsed."""
    try:
        return None if text is None else parsedate_to_datetime(text).timestamp()
    except (ValueError, OverflowError):
        return None
