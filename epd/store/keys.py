"""Every Redis key of the store, spelled once. Broker keys are in ``tasks.transport.keys``.

key                       type    lives for                       owner
epd:job:{job}             hash    deadline + job_ttl              api creates, workers finish
epd:emb:{key}             string  embedding_ttl, LRU-bounded      encode reply; eviction removes
epd:lru                   zset    one member a file of L1         encode reply, mover; eviction removes
epd:lru:bytes             string  one counter                     encode reply, mover; eviction subtracts
epd:lru2                  zset    one member a file of L2         mover; eviction removes
epd:lru2:bytes            string  one counter                     mover; eviction subtracts
epd:lru:sizes             hash    one field a member of either    encode reply, mover; eviction removes
epd:lru2:wanted           zset    a minute, 1024 members          look-ups that found L2 alone; mover
epd:mover                 string  its lease                       the one mover that moves files
epd:cache:totals          hash    one field a kind of event       who looks up, claims, evicts, moves
epd:pin:{key}             string  as long as asked for            who hands an embedding out
epd:flight:{key}          string  flight_lease, renewed           the waiter that flies
epd:flight:{key}:waiters  hash    job deadline                    claimers; completion removes
epd:flights               zset    one member an open flight       claimers; completion and reaper remove
epd:load                  hash    as long as any job holds        api admits; final parts give back
epd:load:jobs             hash    one field a job that holds      api admits; job's end, or its check
epd:load:checks           zset    one member a job that holds     the same
epd:segments              hash    embedding_ttl, EPD_SEGMENTS     encode reply; drops what is over
epd:src:{source key}      string  embedding_ttl                   fetch
epd:sound:{digest}        string  job_deadline                    decode
epd:media:{media id}      string  media_ttl                       api upload
epd:encoder:{name}        string  one an encoder of the config    GPU worker
epd:worker:{name}         string  heartbeat_ttl                   each worker
epd:workers               set     2 * heartbeat_ttl, renewed      each worker; pruned on read too
epd:handoff:{request}     list    handoff_ttl                     Prefill puts through an api process
epd:handoff_wait:{request} set    seconds, 32 members             api processes that wait for one
epd:events:{watcher}      channel                                 workers publish, an api process listens
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
    """The index entry of one embedding, metadata and all."""
    return f"{EMBEDDING_PREFIX}{key}"


def pin(key: str) -> str:
    """The lease that keeps one embedding from being evicted."""
    return f"{PIN_PREFIX}{key}"


def flight(key: str) -> str:
    """The lease of the flight that makes one embedding."""
    return f"{FLIGHT_PREFIX}{key}"


def handoff(request_id: str) -> str:
    """What Prefill put for Decode."""
    return f"{HANDOFF_PREFIX}{request_id}"


def handoff_waiting(request_id: str) -> str:
    """Who is told when that comes. Request ids may hold colons, so this is no suffix of the other."""
    return f"{HANDOFF_WAIT_PREFIX}{request_id}"


def source(source_key: str) -> str:
    """The URL memo of one source."""
    return f"epd:src:{source_key}"


def audio_track(digest: str) -> str:
    """Whether a video's bytes have sound."""
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
    """The channel on which one api process hears of its jobs."""
    return f"{EVENTS_PREFIX}{watcher}"


def milliseconds(seconds: float) -> int:
    """Whole milliseconds, at least one: a TTL of zero is an error to the server."""
    return max(1, round(seconds * 1000))
