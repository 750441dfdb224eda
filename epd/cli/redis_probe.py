"""A short look at a Redis server: whether it answers, and what it says of itself."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from epd.contracts.errors import SettingsError

#: Seconds for connecting, and for each answer.
_LIMIT = 2.0


def server_info(url: str) -> Mapping[str, Any]:
    """INFO's server section of a redis:// or rediss:// URL; raises ``ConnectionError`` when none comes."""
    import redis  # here, since it takes longer to import than most commands take to run

    try:
        with redis.Redis.from_url(url, socket_timeout=_LIMIT, socket_connect_timeout=_LIMIT) as client:
            info: Mapping[str, Any] = client.info("server")
    except redis.RedisError as error:
        raise ConnectionError(f"{type(error).__name__}: {error}") from error
    return info


def require_server(setting: str, url: str) -> None:
    """Make sure that a server answers at the URL that a setting names; URLs of other kinds are let through.

    Raises:
        SettingsError: none does. Without this a stack would wait for minutes for a server that is gone.
    """
    if not url.startswith(("redis://", "rediss://")):
        return
    try:
        server_info(url)
    except ConnectionError as error:
        raise SettingsError(
            f"{setting}: no Redis at {without_password(url)} ({error}). Does it come from the env file of a "
            "stack that has stopped? Then use a new terminal, or unset every EPD_ variable"
        ) from error


def without_password(url: str) -> str:
    """A URL without user and password."""
    scheme, _, rest = url.rpartition("://")
    return f"{scheme}://{rest.rsplit('@', 1)[-1]}"
