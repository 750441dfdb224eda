"""Blocks all network access of a process except to one server."""

from __future__ import annotations

import ipaddress
import sys
from typing import Any
from urllib.parse import urlsplit

#: Events that Python reports to audit hooks before the system call. A hook cannot be removed.
#: Source: docs.python.org/3/library/audit_events.html.
_CONNECTS = {"socket.connect", "socket.sendto", "socket.sendmsg", "socket.bind"}
_RESOLVES = {"socket.getaddrinfo", "socket.gethostbyname", "socket.gethostbyaddr", "socket.getnameinfo"}


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
