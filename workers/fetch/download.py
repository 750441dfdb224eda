"""Fetch a URL into an open file while hashing it: bounded in bytes, hops, tries and time.

Retried are failed connections, short bodies and the answers 408, 429 and 5xx. ``Retry-After`` is honoured
where the total time limit allows it. Every hop of a redirect is checked like the first URL.
"""

from __future__ import annotations

import hashlib
import logging
import random
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import BinaryIO
from urllib.parse import urljoin

import requests
import urllib3

from epd.contracts.errors import (
    EpdError,
    InvalidRequest,
    SourceFault,
    SourceRefused,
    SourceRejected,
    SourceTimeout,
    SourceUnavailable,
)
from epd.identity import source_key
from workers.fetch.caching import Reuse, reuse_of
from workers.fetch.connection import Exchange, exchange, thread_session
from workers.fetch.guard import Target, check_url
from workers.fetch.transfer import copy_body, delay_of
from workers.limits import FetchLimits

logger = logging.getLogger(__name__)

_FIRST_BACKOFF = 0.2
_REDIRECTS = frozenset({301, 302, 303, 307, 308})
_AGAIN = frozenset({408, 429})


@dataclass(frozen=True, kw_only=True)
class Downloaded:
    """What came. ``digest`` is the sha256 hex of the ``nbytes`` written; empty and 0 on ``not_modified``.

    ``answered_by`` is the source key of the URL that answered, behind all redirects.
    """

    digest: str
    nbytes: int
    reuse: Reuse
    answered_by: str
    not_modified: bool = False


@dataclass(frozen=True, kw_only=True)
class Validators:
    """What an earlier answer said of itself; sent along so that the server may answer 304.

    They go to the URL that gave them alone: behind a redirect that points elsewhere now, an equal tag may
    stand for other bytes.
    """

    answered_by: str
    etag: str | None = None
    last_modified: str | None = None

    def headers(self, url: str) -> dict[str, str]:
        """The conditional headers of a request for this URL (RFC 9110, 13.1)."""
        pairs = {"If-None-Match": self.etag, "If-Modified-Since": self.last_modified}
        if source_key(url) != self.answered_by:
            return {}
        return {name: value for name, value in pairs.items() if value}


def download(
    url: str, *, into: BinaryIO, limits: FetchLimits, validators: Validators | None = None
) -> Downloaded:
    """Fetch ``url`` and write its body to ``into``, an empty seekable file opened for binary writing.

    Raises ``InvalidRequest`` or ``SourceRefused`` for the URL, ``SourceRejected`` for a final answer that is
    no media, ``MediaTooLarge`` over ``max_bytes``, ``SourceUnavailable`` or ``SourceTimeout`` when the tries
    or the time have run out, ``BlobSpaceFull`` when the file cannot grow.
    """
    deadline = time.monotonic() + limits.total_timeout
    for tried in range(limits.retries + 1):
        try:
            return _one_try(url, into, limits, deadline, validators)
        except SourceFault as fault:
            pause = _pause(tried, fault)
            if tried == limits.retries or time.monotonic() + pause >= deadline:
                raise
            logger.info("try %s failed (%s), next in %.2f s", tried + 1, fault.message, pause)
            time.sleep(pause)
    raise AssertionError("the last try returns or raises")


def _pause(tried: int, fault: SourceFault) -> float:
    """Seconds before the next try: what the server asked for, else doubling with jitter."""
    if fault.retry_after is not None:
        return fault.retry_after
    return _FIRST_BACKOFF * (1 << tried) * random.uniform(0.5, 1.0)


def _one_try(
    url: str, into: BinaryIO, limits: FetchLimits, deadline: float, validators: Validators | None
) -> Downloaded:
    into.seek(0)
    into.truncate()
    for _ in range(limits.max_redirects + 1):
        target = check_url(url)
        with exchange(target, limits, deadline) as current:
            conditions = {} if validators is None else validators.headers(target.url)
            answer = _ask(current, conditions)
            try:
                if answer.status_code not in _REDIRECTS:
                    return _take(answer, current, into, conditional=bool(conditions))
                url = _next_hop(answer, target)
            finally:
                answer.close()
    raise SourceRejected(f"more than {limits.max_redirects} redirects")


def _ask(current: Exchange, conditions: Mapping[str, str]) -> requests.Response:
    """Send the request, by the adapter itself: ``Session.send`` would read a redirect's whole body."""
    session = thread_session(current.limits.allow_hosts)
    # Media does not compress, and what is not compressed cannot be a compression bomb.
    headers = {"Accept": "*/*", "Accept-Encoding": "identity", "User-Agent": "epd", **conditions}
    left = current.remaining()
    timeout = (min(current.limits.connect_timeout, left), min(current.limits.read_timeout, left))
    try:
        prepared = requests.Request("GET", current.target.url, headers=headers).prepare()
        adapter = session.get_adapter(prepared.url or "")
        return adapter.send(prepared, stream=True, timeout=timeout, verify=True)
    except EpdError:
        raise
    except (requests.exceptions.InvalidURL, requests.exceptions.InvalidHeader, UnicodeError):
        raise InvalidRequest("the URL cannot be requested") from None
    except (requests.RequestException, urllib3.exceptions.HTTPError, OSError) as error:
        raise as_fault(error, current) from error


def as_fault(error: Exception, current: Exchange) -> SourceFault:
    """The fault that a failed exchange stands for; its text holds nothing of the URL."""
    current.remaining()
    slow = (requests.Timeout, urllib3.exceptions.TimeoutError, TimeoutError)
    if isinstance(error, slow):
        return SourceTimeout("the server did not answer in time")
    return SourceUnavailable(f"the connection failed ({type(error).__name__})")


def _next_hop(answer: requests.Response, target: Target) -> str:
    location = answer.headers.get("Location")
    if not location:
        raise SourceRejected("a redirect without a location")
    try:
        # http.client hands header bytes on as Latin-1; browsers read them as UTF-8.
        return urljoin(target.url, location.encode("latin-1").decode("utf-8", "replace"))
    except ValueError:
        raise SourceRefused("a redirect to something that is no URL") from None


def _take(answer: requests.Response, current: Exchange, into: BinaryIO, *, conditional: bool) -> Downloaded:
    status = answer.status_code
    if status in _AGAIN or status >= 500:
        raise SourceUnavailable(f"the server answered {status}", retry_after=delay_of(answer.headers))
    if status == 304 and not conditional:
        raise SourceRejected("the server answered 304 to a request without conditions")
    if status not in {200, 203, 304}:
        raise SourceRejected(f"the server answered {status}")
    hasher = hashlib.sha256()
    nbytes = 0
    if status != 304:
        try:
            nbytes = copy_body(answer, current, into, hasher)
        except (urllib3.exceptions.HTTPError, requests.RequestException, OSError) as error:
            raise as_fault(error, current) from error
    return Downloaded(
        digest="" if status == 304 else hasher.hexdigest(),
        nbytes=nbytes,
        reuse=reuse_of(answer.headers),
        answered_by=source_key(current.target.url),
        not_modified=status == 304,
    )
