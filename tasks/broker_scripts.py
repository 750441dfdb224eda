"""The Lua files of the transport, and the bell's three plain commands."""

from __future__ import annotations

from functools import cache
from importlib.resources import files
from typing import Any

from tasks import broker_keys


@cache
def script_text(name: str) -> str:
    """Source of ``tasks/lua/<name>.lua``."""
    return files("tasks").joinpath("lua", f"{name}.lua").read_text(encoding="utf-8")


def raise_for_first(results: list[Any]) -> None:
    """Raise the error of a pipeline's first command; a bell that could not be rung costs half a second."""
    if isinstance(results[0], Exception):
        raise results[0]


def ring(pipe: Any, lane: str) -> None:
    """Queue the commands that leave one token at the bell of ``lane``, on a redis-py pipeline.

    The trim keeps a lane that nobody consumes from gathering tokens.
    """
    key = broker_keys.bell(lane)
    pipe.lpush(key, 1)
    pipe.ltrim(key, 0, 0)
    pipe.expire(key, broker_keys.BELL_TTL_S)
