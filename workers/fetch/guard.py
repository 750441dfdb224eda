"""Which addresses a download may dial: the guard against requests into our own network (SSRF).

A URL is judged by the addresses that its host resolves to, never by its spelling, so every other way to
write 127.0.0.1 is caught too. Only addresses that passed the check are dialled.
"""

from __future__ import annotations

import ipaddress
import re
import socket
import threading
from dataclasses import dataclass
from urllib.parse import quote, urlsplit

from epd.contracts.errors import InvalidRequest, SourceRefused, SourceTimeout, SourceUnavailable

IpAddress = ipaddress.IPv4Address | ipaddress.IPv6Address

#: Characters of the longest URL.
_MAX_URL = 8192
_DEFAULT_PORTS = {"http": 80, "https": 443}
# Parsers disagree on white space and control characters, and some take a backslash for a slash.
_AMBIGUOUS = re.compile(r"[\x00-\x20\x7f\\]")
_NAT64 = ipaddress.ip_network("64:ff9b::/96")
_ASCII_PRINTABLE = "".join(map(chr, range(0x21, 0x7F)))


@dataclass(frozen=True)
class Target:
    """A checked URL: host and port to dial, and the request's path exactly as it was written."""

    url: str
    scheme: str
    host: str
    port: int
    path: str


def check_url(url: str) -> Target:
    """Parse a URL.

    Raises:
        SourceRefused: such a URL is never downloaded.
        InvalidRequest: the URL cannot be parsed.
    """
    if len(url) > _MAX_URL or _AMBIGUOUS.search(url):
        raise InvalidRequest("the URL is too long or holds white space, control characters or a backslash")
    try:
        parts = urlsplit(url)
        port = parts.port
        host = parts.hostname or ""
    except ValueError:
        raise InvalidRequest("the URL cannot be parsed") from None
    scheme = parts.scheme.lower()
    if scheme not in _DEFAULT_PORTS:
        raise SourceRefused("only http and https URLs are fetched")
    if "@" in parts.netloc:
        raise SourceRefused("a URL with user name or password is refused")
    if not host:
        raise InvalidRequest("the URL names no host")
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    return Target(
        url=url,
        scheme=scheme,
        host=host,
        port=_DEFAULT_PORTS[scheme] if port is None else port,
        path=quote(path, safe=_ASCII_PRINTABLE),
    )


def is_allowed_host(host: str, port: int, allow_hosts: tuple[str, ...]) -> bool:
    """Whether the allow list names this host, with this port or without a port."""
    name = host.lower().strip("[]")
    spellings = {name, f"{name}:{port}", f"[{name}]:{port}"}
    return any(entry.lower() in spellings for entry in allow_hosts)


def is_public(address: IpAddress) -> bool:
    """Whether an address is on the public internet; an IPv4 address inside an IPv6 one is checked itself."""
    if isinstance(address, ipaddress.IPv6Address):
        inner = _wrapped(address)
        if inner is not None:
            return is_public(inner)
        if address.is_site_local:
            return False
    return address.is_global and not (address.is_multicast or address.is_reserved)


def _wrapped(address: ipaddress.IPv6Address) -> ipaddress.IPv4Address | None:
    """The IPv4 address inside a mapped, 6to4, Teredo or NAT64 (RFC 6052) address."""
    if address.ipv4_mapped or address.sixtofour:
        return address.ipv4_mapped or address.sixtofour
    if address.teredo:
        return address.teredo[1]
    if address in _NAT64:
        return ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
    return None


def look_up(host: str, port: int, *, allow_hosts: tuple[str, ...], timeout: float) -> tuple[str, ...]:
    """Resolve ``host`` once, within ``timeout`` seconds.

    Returns:
        The addresses that may be dialled, in the resolver's order.

    Raises:
        SourceRefused: an address is not public and the host is not on the allow list. One such address is
            enough, since a mixed answer is how a rebinding server gets a private address through.
        SourceUnavailable, SourceTimeout: the name does not resolve.
    """
    found = _resolve(host, port, timeout=timeout)
    if is_allowed_host(host, port, allow_hosts):
        return found
    for text in found:
        if not is_public(ipaddress.ip_address(text.partition("%")[0])):
            raise SourceRefused("the URL's host has an address that is not public")
    return found


def _resolve(host: str, port: int, *, timeout: float) -> tuple[str, ...]:
    # getaddrinfo takes no timeout, so it runs in a thread. The resolver's own limits end it at last.
    answer: list[tuple[str, ...] | Exception] = []

    def ask() -> None:
        try:
            rows = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
            answer.append(tuple(dict.fromkeys(str(row[4][0]) for row in rows)))
        except (OSError, UnicodeError, ValueError) as error:
            answer.append(error)

    thread = threading.Thread(target=ask, name="epd-resolver", daemon=True)
    thread.start()
    thread.join(timeout)
    if not answer:
        raise SourceTimeout("the host's name was not resolved in time")
    if isinstance(answer[0], Exception) or not answer[0]:
        raise SourceUnavailable("the host's name cannot be resolved")
    return answer[0]
