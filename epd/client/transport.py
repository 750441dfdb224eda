"""The connections of the blocking client, kept open by urllib3.

A small call costs about 0.2 ms of CPU this way. httpx, which the asynchronous client uses, takes 0.6 ms for
the same call (both measured). That is more than the server spends on a handoff.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import BinaryIO

import urllib3
from urllib3.exceptions import HTTPError
from urllib3.util import Timeout, make_headers

from epd.client import calls
from epd.client.calls import Answer, Unreachable

#: Idle connections to keep. More threads than this open additional connections.
_KEPT = 64
#: Bytes of a file that are read and sent at a time.
_BLOCK = 1 << 18


class Transport:
    """Sends requests to one server, from any thread."""

    def __init__(self, base_url: str, timeout: float) -> None:
        """``timeout`` bounds connecting and each read, in seconds, not counting the wait of a call.

        Raises:
            InvalidRequest: the URL is malformed.
        """
        url = calls.checked_url(base_url)
        server, prefix = f"{url.scheme}://{url.netloc.decode()}", url.path.rstrip("/")
        self._name, self._prefix, self._timeout = server + prefix, prefix, timeout  # no password in the name
        login = make_headers(basic_auth=f"{url.username}:{url.password}") if url.userinfo else {}
        self._headers = dict(login) | {"Accept": "*/*"}
        self._pool = urllib3.connection_from_url(server, maxsize=_KEPT, blocksize=_BLOCK)

    def close(self) -> None:
        """Close the connections."""
        self._pool.close()

    def send(
        self,
        method: str,
        target: str,
        *,
        body: bytes | BinaryIO | None = None,
        headers: Mapping[str, str] | None = None,
        wait: float = 0.0,
    ) -> Answer:
        """Send one request and read its whole answer. The server may take ``wait`` seconds longer.

        Raises:
            Unreachable: no answer came.
        """
        try:
            answer = self._open(method, target, body=body, headers=headers, wait=wait)
        except (HTTPError, OSError) as error:
            raise self._unreachable(error) from error
        return Answer(answer.status, answer.headers, answer.data)

    def lines(self, target: str) -> Iterator[str]:
        """Yield the lines of an answer as they come; raises as ``send`` does, or the error of a problem."""
        try:
            answer = self._open("GET", target, preload=False)
            try:
                if answer.status != calls.OK:
                    calls.raise_for_problem(Answer(answer.status, answer.headers, answer.read()))
                for line in answer:
                    yield line.decode().rstrip("\r\n")
            finally:
                answer.close()
        except (HTTPError, OSError) as error:
            raise self._unreachable(error) from error

    def _open(
        self,
        method: str,
        target: str,
        *,
        body: bytes | BinaryIO | None = None,
        headers: Mapping[str, str] | None = None,
        wait: float = 0.0,
        preload: bool = True,
    ) -> urllib3.BaseHTTPResponse:
        return self._pool.urlopen(
            method,
            self._prefix + target,
            body=body,
            headers=self._headers | dict(headers or {}),
            retries=False,
            redirect=False,
            timeout=Timeout(connect=self._timeout, read=self._timeout + wait),
            preload_content=preload,
        )

    def _unreachable(self, error: Exception) -> Unreachable:
        return Unreachable(f"{self._name}: {error or type(error).__name__}")
