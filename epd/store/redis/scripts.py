"""The Lua scripts of ``epd/store/lua``, by name, each with its libraries and key names put before it.

A script's first lines name its KEYS, ARGV and the keys it touches. A line ``--@use name`` asks for
``lib_name.lua``, in a library too. Key names come from ``epd.store.keys``: Lua spells none. Scripts find the
jobs of a flight's waiters by themselves, so they need one server: Redis Cluster is not supported.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from pathlib import Path

from epd.store import keys

_FOLDER = Path(__file__).resolve().parent.parent / "lua"
_USE = re.compile(r"^--@use (\w+)$", re.MULTILINE)


class Script(StrEnum):
    """Every script; the value is the file's name without ``.lua``."""

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
    LAND = "land"
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
    """A whole script as sent to the server, and the sha1 hex by which it is called."""

    source: str
    sha: str


@lru_cache(maxsize=1)
def load_scripts() -> dict[Script, ScriptText]:
    """All scripts, read once a process."""
    return {script: _read(script) for script in Script}


def _read(script: Script) -> ScriptText:
    body = (_FOLDER / f"{script}.lua").read_text(encoding="utf-8")
    source = "\n".join([_key_names(), *_libraries(body), body])
    # sha1 is what EVALSHA asks for; it protects nothing here.
    return ScriptText(source, hashlib.sha1(source.encode(), usedforsecurity=False).hexdigest())


def _libraries(text: str) -> list[str]:
    """The libraries that a text asks for, each once, after those that it asks for itself."""
    found: dict[str, None] = {}
    for name in _USE.findall(text):
        library = (_FOLDER / f"lib_{name}.lua").read_text(encoding="utf-8")
        found |= dict.fromkeys([*_libraries(library), library])
    return list(found)


def _key_names() -> str:
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
