"""Decode: continues from Prefill's KV cache with only the handoff. It can connect to epd's API, nowhere else.

A request is ``{"request_id": "r1"}``. It may arrive before Prefill has finished or even started.
"""

from __future__ import annotations

import ipaddress
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from epd.client import Client
from examples.epd_transformers.engine import Line, load_languages, read_options, serve
from examples.epd_transformers.sequence import LanguageModel, take_caches

#: Seconds to wait for Prefill.
HANDOFF_TIMEOUT = 60.0
#: Events that Python reports to audit hooks before the system call. A hook cannot be removed.
#: Source: docs.python.org/3/library/audit_events.html.
_CONNECTS = {"socket.connect", "socket.sendto", "socket.sendmsg", "socket.bind"}
_RESOLVES = {"socket.getaddrinfo", "socket.gethostbyname", "socket.gethostbyaddr", "socket.getnameinfo"}


class Decode:
    """Runs sequences from their first token to their end."""

    def __init__(
        self, epd: Client, languages: Mapping[str, LanguageModel], kv: Path, workers: int = 1
    ) -> None:
        self._epd = epd
        self._languages = languages
        self._kv = kv
        self._device = threading.Semaphore(workers)

    def answer(self, request: Line) -> Line:
        """All tokens of each sequence, and their text."""
        handoff = self._epd.handoff(request["request_id"], wait=HANDOFF_TIMEOUT)
        extra: Any = handoff.extra
        delta = handoff.mrope_position_delta or 0
        caches = take_caches(self._kv / f"{request['request_id']}.safetensors")
        tokens, texts = [], []
        for sequence, cache in zip(extra["sequences"], caches, strict=True):
            language = self._languages[sequence["language"]]
            with self._device:
                decoded = language.decode(sequence["token"], cache, delta=delta, limit=extra["limit"])
            tokens.append(decoded)
            texts.append(language.text(decoded))
        return {"tokens": tokens, "texts": texts, "media": [item.key for item in handoff.items]}


class NetworkIsOff(OSError):
    """This process may connect only to epd's API."""


def allow_only(url: str) -> None:
    """Refuse every connection except to the server of ``url``, until the process ends.

    ``url`` has an IP address, not a host name, so name lookups can be refused too.
    """
    parts = urlsplit(url)
    allowed = (str(ipaddress.ip_address(parts.hostname or "")), parts.port or 80)

    def refuse(event: str, arguments: tuple[Any, ...]) -> None:
        if event in _CONNECTS and tuple(arguments[1][:2]) != allowed:
            raise NetworkIsOff(f"{event} to {arguments[1]} is refused: only {allowed} is allowed")
        if event in _RESOLVES and str(arguments[0]) != allowed[0]:
            raise NetworkIsOff(f"{event} of {arguments[0]} is refused")

    sys.addaudithook(refuse)


def main() -> None:
    """Serve requests until standard input ends."""
    options = read_options("decode")
    languages = load_languages(options.checkpoints)
    allow_only(options.epd)
    with Client(options.epd) as epd:
        serve(Decode(epd, languages, options.kv, options.workers).answer)


if __name__ == "__main__":
    main()
