"""All Redis keys of the store, each spelled once. The broker's keys are in ``tasks.transport.keys``.

Every key has a TTL, or its size has a bound that the last column's owner keeps. The keys without a TTL are
``epd:lru*`` (but ``epd:lru2:wanted``), ``epd:cache:totals``, ``epd:flights``, ``epd:load*`` and
``epd:encoder:*``. The contract tests fail on any other.

key                        type    lifetime or bound               written by
epd:job:{job}              hash    deadline + job_ttl              api creates it, workers finish its parts
epd:emb:{key}              string  embedding_ttl, LRU              encode's reply; eviction removes it
epd:lru                    zset    one member per file in L1       encode's reply, mover; eviction removes
epd:lru:bytes              string  one counter                     encode's reply, mover; eviction subtracts
epd:lru2                   zset    one member per file in L2       mover; eviction removes
epd:lru2:bytes             string  one counter                     mover; eviction subtracts
epd:lru:sizes              hash    one field per member of either  encode's reply, mover; eviction removes
epd:lru2:wanted            zset    a minute, 1024 members          lookups that found only L2; mover
epd:mover                  string  its lease                       the process that moves files
epd:cache:totals           hash    one field per kind of event     lookup, claim, eviction, mover
epd:pin:{key}              string  as long as requested            whatever hands out an embedding
epd:flight:{key}           string  flight_lease, renewed           the leader
epd:flight:{key}:waiters   hash    the longest of their jobs       leader and waiters; completion removes it
epd:flights                zset    one member per open flight      claim; completion and reaper remove
epd:load                   hash    as long as any job holds        api admits; the end of a part gives back
epd:load:jobs              hash    one field per job that holds    api admits; the job's end or its check
epd:load:checks            zset    one member per job that holds   as epd:load:jobs
epd:segments               hash    embedding_ttl, EPD_SEGMENTS     encode's reply, which drops the excess
epd:src:{source key}       string  embedding_ttl                   fetch
epd:sound:{digest}         string  job_deadline                    decode
epd:media:{media id}       string  media_ttl                       api, for an upload
epd:encoder:{name}         string  one per encoder in the config   GPU worker
epd:worker:{name}          string  heartbeat_ttl                   each worker
epd:workers                set     2 * heartbeat_ttl, renewed      each worker; pruned on read as well
epd:handoff:{request}      list    handoff_ttl                     Prefill, through an api process
epd:handoff_wait:{request} set     seconds, 32 members             api processes that wait for a handoff
epd:events:{watcher}       channel                                 workers publish, one api process listens
"""

from __future__ import annotations

PREFIX = "epd:"

LRU = "epd:lru"
LRU_BYTES = "epd:lru:bytes"
LRU_SIZES = "epd:lru:sizes"
LRU2 = "epd:lru2"
LRU2_BYTES = "epd:lru2:bytes"
WANTED_IN_L1 = "epd:lru2:wanted"
MOVER = "epd:mover"
CACHE_TOTALS = "epd:cache:totals"
SEGMENTS = "epd:segments"
FLIGHTS = "epd:flights"
WORKERS = "epd:workers"
LOAD = "epd:load"
LOAD_JOBS = "epd:load:jobs"
LOAD_CHECKS = "epd:load:checks"

JOB_PREFIX = "epd:job:"
EMBEDDING_PREFIX = "epd:emb:"
PIN_PREFIX = "epd:pin:"
EVENTS_PREFIX = "epd:events:"
FLIGHT_PREFIX = "epd:flight:"
WAITERS_SUFFIX = ":waiters"
HANDOFF_PREFIX = "epd:handoff:"
HANDOFF_WAIT_PREFIX = "epd:handoff_wait:"


def job(job_id: str) -> str:
    """The hash of one job."""
    return f"{JOB_PREFIX}{job_id}"


def embedding(key: str) -> str:
    """The index entry of one embedding, with its metadata."""
    return f"{EMBEDDING_PREFIX}{key}"


def pin(key: str) -> str:
    """The pin that keeps one embedding from being evicted."""
    return f"{PIN_PREFIX}{key}"


def flight(key: str) -> str:
    """The leader of the flight that makes one embedding. Its TTL is the lease."""
    return f"{FLIGHT_PREFIX}{key}"


def handoff(request_id: str) -> str:
    """The handoff that Prefill put for Decode."""
    return f"{HANDOFF_PREFIX}{request_id}"


def handoff_waiting(request_id: str) -> str:
    """The watchers to notify of a handoff. A suffix would be ambiguous: request ids may contain colons."""
    return f"{HANDOFF_WAIT_PREFIX}{request_id}"


def source(source_key: str) -> str:
    """The URL memo of one source."""
    return f"epd:src:{source_key}"


def audio_track(digest: str) -> str:
    """Whether a video has an audio track, by the digest of its bytes."""
    return f"epd:sound:{digest}"


def media(media_id: str) -> str:
    """The record of one upload."""
    return f"epd:media:{media_id}"


def encoder(name: str) -> str:
    """The card of one encoder."""
    return f"epd:encoder:{name}"


def worker(name: str) -> str:
    """The heartbeat of one worker."""
    return f"epd:worker:{name}"


def events(watcher: str) -> str:
    """The channel of one api process, for notices of its jobs."""
    return f"{EVENTS_PREFIX}{watcher}"


def milliseconds(seconds: float) -> int:
    """Seconds in whole milliseconds, at least one: servers refuse a TTL of zero."""
    return max(1, round(seconds * 1000))
