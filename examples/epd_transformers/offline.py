"""Switches a process's network off, but for one server."""

from __future__ import annotations

import ipaddress
import sys
from typing import Any
from urllib.parse import urlsplit

#: What Python tells its audit hooks of before the system is asked; a hook cannot be taken away again.
#: Source: docs.python.org/3/library/audit_events.html.
_REACHES_OUT = {"socket.connect", "socket.sendto", "socket.sendmsg", "socket.bind"}
_ASKS_NAMES = {"socket.getaddrinfo", "socket.gethostbyname", "socket.gethostbyaddr", "socket.getnameinfo"}


class NetworkIsOff(OSError):
    """This process may reach epd's API and nothing else."""


def allow_only(url: str) -> None:
    """From now on every socket that goes anywhere but to the server of ``url`` is refused, for good.

    ``url`` names an address, not a host: so that no name server is needed either.
    """
    parts = urlsplit(url)
    allowed = (str(ipaddress.ip_address(parts.hostname or "")), parts.port or 80)

    def refuse(event: str, arguments: tuple[Any, ...]) -> None:
        if event in _REACHES_OUT and tuple(arguments[1][:2]) != allowed:
            raise NetworkIsOff(f"{event} to {arguments[1]} is refused: only {allowed} is allowed")
        if event in _ASKS_NAMES and str(arguments[0]) != allowed[0]:
            raise NetworkIsOff(f"{event} of {arguments[0]} is refused")

    sys.addaudithook(refuse)
