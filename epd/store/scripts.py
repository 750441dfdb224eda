"""Load the Lua scripts of ``epd/store/lua``, where one file holds the scripts of one idea.

``--@script NAME`` starts a script and ``--@lib NAME`` a library; each ends at the next such line.
``--@use NAME`` puts a library, and the libraries that it uses itself, before the script. The first comment of
a script lists its KEYS, its ARGV, the keys that it reads and writes, and its result.

Lua files spell no key: every script starts with the names from ``epd.store.keys``. Scripts build the keys of
jobs and flights from prefixes, so all keys must be on one server. Redis Cluster is not supported.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from pathlib import Path

from epd.store import keys

_FOLDER = Path(__file__).resolve().parent / "lua"
_SECTION = re.compile(r"^--@(script|lib) (\w+)\n", re.MULTILINE)
_USE = re.compile(r"^--@use (\w+)$", re.MULTILINE)
_MISSPELLED = re.compile(r"^--@(?!(?:script|lib|use) \w+$).*", re.MULTILINE)

Argument = str | int | float
#: A command of the server: its name and its arguments.
Command = tuple[Argument, ...]


class Script(StrEnum):
    """All scripts. The value is the name in Lua."""

    LOOKUP = "lookup"
    REMOVE = "remove"
    PIN = "pin"
    UNPIN = "unpin"
    EVICT = "evict"
    LEAVE = "leave"
    TIER_WORK = "tier_work"
    DEMOTED = "demoted"
    PROMOTED = "promoted"
    CLAIM = "claim"
    EXTEND = "extend"
    COMPLETE = "complete"
    FAIL = "fail"
    WITHDRAW = "withdraw"
    TAKE_WAITERS = "take_waiters"
    SEGMENTS_NOTE = "segments_note"
    ORPHANS = "orphans"
    JOB_CREATE = "job_create"
    JOB_WATCH = "job_watch"
    JOB_ADVANCE = "job_advance"
    JOB_ADD_PART = "job_add_part"
    JOB_FINISH = "job_finish"
    JOB_CLOSE = "job_close"
    LOAD_ADMIT = "load_admit"
    LOAD_RELEASE = "load_release"
    HANDOFF_ENTRIES = "handoff_entries"
    HANDOFF_PUT = "handoff_put"
    HANDOFF_GET = "handoff_get"


@dataclass(frozen=True, slots=True)
class ScriptText:
    """The source of a script as the server gets it, and its sha1 in hex, by which it is called."""

    source: str
    sha: str


@lru_cache(maxsize=1)
def load_scripts() -> dict[Script, ScriptText]:
    """Read all scripts, once per process.

    Raises:
        ValueError: the files and ``Script`` do not name the same scripts.
    """
    sources = cut_scripts(path.read_text(encoding="utf-8") for path in _FOLDER.glob("*.lua"))
    if unmatched := sources.keys() ^ set(Script):
        raise ValueError(f"only in lua/ or only in Script: {', '.join(sorted(unmatched))}")
    return {script: _script_text(sources[script]) for script in Script}


def cut_scripts(files: Iterable[str]) -> dict[str, str]:
    """Cut Lua files into scripts, each with its libraries before it, by name.

    Raises:
        ValueError: a ``--@`` line is misspelled, a name is defined twice, or a library is unknown or uses
            itself.
    """
    scripts: dict[str, str] = {}
    libraries: dict[str, str] = {}
    for text in files:
        if misspelled := _MISSPELLED.search(text):
            raise ValueError(f"unknown mark: {misspelled[0]}")
        _, *pieces = _SECTION.split(text)
        for kind, name, body in zip(pieces[::3], pieces[1::3], pieces[2::3], strict=True):
            known = scripts if kind == "script" else libraries
            if name in known:
                raise ValueError(f"{kind} {name} is defined twice")
            known[name] = body
    return {
        name: "\n".join([*(libraries[used] for used in _used(body, libraries)), body])
        for name, body in scripts.items()
    }


def _used(text: str, libraries: Mapping[str, str], users: tuple[str, ...] = ()) -> dict[str, None]:
    """Name the libraries of a text once each, in an order that defines a library before its users.

    ``users`` are the libraries that led here.
    """
    found: dict[str, None] = {}
    for name in _USE.findall(text):
        if name not in libraries or name in users:
            raise ValueError(f"--@use {name}: an unknown library, or one that uses itself")
        found |= {**_used(libraries[name], libraries, (*users, name)), name: None}
    return found


def _script_text(text: str) -> ScriptText:
    source = f"{_key_names()}\n{text}"
    # EVALSHA asks for sha1. Nothing here depends on its security.
    return ScriptText(source, hashlib.sha1(source.encode(), usedforsecurity=False).hexdigest())


def _key_names() -> str:
    """Lua definitions of the keys and prefixes that scripts use."""
    names = {
        "JOB": keys.JOB_PREFIX,
        "EMB": keys.EMBEDDING_PREFIX,
        "PIN": keys.PIN_PREFIX,
        "EVENTS": keys.EVENTS_PREFIX,
        "FLIGHT": keys.FLIGHT_PREFIX,
        "WAITERS_SUFFIX": keys.WAITERS_SUFFIX,
        "LRU": keys.LRU,
        "LRU_BYTES": keys.LRU_BYTES,
        "LRU_SIZES": keys.LRU_SIZES,
        "LRU2": keys.LRU2,
        "LRU2_BYTES": keys.LRU2_BYTES,
        "WANTED_IN_L1": keys.WANTED_IN_L1,
        "MOVER": keys.MOVER,
        "CACHE_TOTALS": keys.CACHE_TOTALS,
        "FLIGHTS": keys.FLIGHTS,
        "LOAD": keys.LOAD,
        "LOAD_JOBS": keys.LOAD_JOBS,
        "LOAD_CHECKS": keys.LOAD_CHECKS,
    }
    return "\n".join(f"local {name} = '{value}'" for name, value in names.items())
