"""Seconds as the store's settings give them, in the milliseconds that keys expire in."""

from __future__ import annotations


def milliseconds(seconds: float) -> int:
    """Whole milliseconds, at least one: a TTL of zero is an error to the server."""
    return max(1, round(seconds * 1000))
