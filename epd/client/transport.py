"""The blocking client's way to a server: kept connections of urllib3.

A small call costs some 0.2 ms of CPU this way. httpx, which the asynchronous client is made of, takes 0.6 ms
for the same (both measured), which is more than the server spends on a handoff.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import BinaryIO

import urllib3
from urllib3.exceptions import HTTPError
from urllib3.util import Timeout, make_headers

from epd.client import calls
from epd.client.calls import Answer, Unreachable

#: Connections that are kept for the next call; more threads than that open some of their own.
_KEPT = 64
#: Bytes of a file that are read and sent at once.
_BLOCK = 1 << 18


class Exchange:
    """Sends requests to one server, from any thread."""

    def __init__(self, base_url: str, timeout: float) -> None:
        """``timeout`` is seconds for connecting, and for each read beside the wait of a call.

        Raises:
            InvalidRequest: the URL is none.
        """
        url = calls.checked_url(base_url)
        server, prefix = f"{url.scheme}://{url.netloc.decode()}", url.path.rstrip("/")
        self._name, self._prefix, self._timeout = server + prefix, prefix, timeout  # the name has no password
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
        """One request and its whole answer; ``wait`` is the seconds that the server may take beside.

        Raises:
            Unreachable: there is no answer.
        """
        try:
            answer = self._open(method, target, body=body, headers=headers, wait=wait)
        except (HTTPError, OSError) as error:
            raise self._unreachable(error) from error
        return Answer(answer.status, answer.headers, answer.data)

    def lines(self, target: str) -> Iterator[str]:
        """The lines of an answer as they come; raises as ``send``, and for a problem its error."""
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
