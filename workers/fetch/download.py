"""Download a URL into an open file and hash it, with limits on bytes, redirects, tries and time.

Failed connections, short bodies and the answers 408, 429 and 5xx are retried; ``Retry-After`` is honoured
within the total time limit. Every redirect is checked like the first URL.
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
from workers.fetch.connection import Exchange, exchange, thread_session
from workers.fetch.guard import Target, check_url
from workers.fetch.response import Reuse, copy_body, delay_of, reuse_of
from workers.limits import FetchLimits

logger = logging.getLogger(__name__)

#: Seconds before the first retry, doubled for each further one.
_FIRST_BACKOFF = 0.2
_REDIRECTS = frozenset({301, 302, 303, 307, 308})
#: Statuses that are retried, besides 5xx.
_RETRIED = frozenset({408, 429})


@dataclass(frozen=True, kw_only=True)
class Downloaded:
    """The result of a download.

    Attributes:
        digest: sha256 of the body in hex; empty if ``not_modified``.
        nbytes: bytes written; 0 if ``not_modified``.
        reuse: what the headers say about reuse.
        answered_by: source key of the URL that answered, after all redirects.
        not_modified: the server answered 304.
    """

    digest: str
    nbytes: int
    reuse: Reuse
    answered_by: str
    not_modified: bool = False


@dataclass(frozen=True, kw_only=True)
class Validators:
    """Validators of an earlier answer, with which the server may answer 304.

    They are sent only to the URL that gave them: where a redirect now leads elsewhere, an equal tag may stand
    for other bytes.
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
    """Download ``url``.

    Args:
        url: an http or https URL.
        into: an empty seekable file, opened for binary writing, that receives the body.
        limits: see ``FetchLimits``; its ``total_timeout`` bounds all tries together.
        validators: what an earlier answer of the URL gave.

    Raises:
        InvalidRequest, SourceRefused: the URL, or one that it redirects to, is not downloaded.
        SourceRejected: the final answer is not media.
        MediaTooLarge: the body is larger than ``limits.max_bytes``.
        SourceUnavailable, SourceTimeout: the tries or the time ran out.
        BlobSpaceFull: the file cannot grow.
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
    """Seconds before the next try: what the server asked for, or a doubling pause with jitter."""
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
    """Send the request through the adapter: ``Session.send`` would read the whole body of a redirect."""
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
    """The fault of a failed exchange. Its text contains nothing of the URL."""
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
        # http.client decodes header bytes as Latin-1; browsers read them as UTF-8.
        return urljoin(target.url, location.encode("latin-1").decode("utf-8", "replace"))
    except ValueError:
        raise SourceRefused("a redirect to something that is not a URL") from None


def _take(answer: requests.Response, current: Exchange, into: BinaryIO, *, conditional: bool) -> Downloaded:
    status = answer.status_code
    if status in _RETRIED or status >= 500:
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
