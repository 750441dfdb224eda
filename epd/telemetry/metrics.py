"""Every metric: its name, type, labels and help text.

name                              type       labels                  what
epd_http_requests_total           counter    method, route, status   requests answered
epd_http_request_seconds          histogram  method, route           time to answer
epd_items_total                   counter    type, result            items answered: cached, done, failed ...
epd_jobs_total                    counter    state                   jobs that ended in a state
epd_disconnect_cancels_total      counter                            jobs cancelled because the client left
epd_saved_bytes_total             counter                            bytes of URLs that needed no worker
epd_waiting_requests              gauge                              requests that wait for their job
epd_store_up                      gauge                              1 when the store answers
epd_embedding_cache_entries       gauge                              entries in the index
epd_embedding_cache_bytes         gauge                              bytes of them
epd_embedding_cache_limit_bytes   gauge                              their limit
epd_cache_tier_entries            gauge      tier                    files in a tier
epd_cache_tier_bytes              gauge      tier                    bytes of them
epd_cache_tier_limit_bytes        gauge      tier                    their limit
epd_cache_hits_total              counter    tier                    wanted embeddings found in a tier
epd_cache_misses_total            counter                            parts that had to be made or waited for
epd_cache_evictions_total         counter    tier                    files removed from a tier for its limit
epd_cache_dropped_total           counter                            of these, embeddings in no tier any more
epd_cache_promotions_total        counter                            files copied from L2 to L1
epd_cache_demotions_total         counter                            files copied from L1 to L2
epd_cache_failed_moves_total      counter                            copies given up, as on a full disk
epd_cache_corrupt_files_total     counter                            damaged files found and deleted
epd_cache_removed_total           counter                            entries removed by an operator
epd_blob_bytes                    gauge                              bytes in the blob directory
epd_queue_messages                gauge      queue                   messages that wait for a worker
epd_inflight_items                gauge      priority                admitted items that are not final
epd_inflight_bytes                gauge      priority                bytes of their media, as far as known
epd_worker_ready                  gauge      worker, kind, host      1 when ready, 0 when still loading
epd_worker_{counter}              see below  worker, kind, encoder   what ``Count`` names
"""

from __future__ import annotations

from dataclasses import dataclass

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from epd.telemetry.counters import Count

#: Seconds, from a cached answer to the longest wait of a request.
_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)

STORE_UP = "epd_store_up"
CACHE_ENTRIES = "epd_embedding_cache_entries"
CACHE_BYTES = "epd_embedding_cache_bytes"
CACHE_LIMIT_BYTES = "epd_embedding_cache_limit_bytes"
CACHE_TIER_ENTRIES = "epd_cache_tier_entries"
CACHE_TIER_BYTES = "epd_cache_tier_bytes"
CACHE_TIER_LIMIT_BYTES = "epd_cache_tier_limit_bytes"
CACHE_HITS = "epd_cache_hits"
CACHE_MISSES = "epd_cache_misses"
CACHE_EVICTIONS = "epd_cache_evictions"
CACHE_DROPPED = "epd_cache_dropped"
CACHE_PROMOTIONS = "epd_cache_promotions"
CACHE_DEMOTIONS = "epd_cache_demotions"
CACHE_FAILED_MOVES = "epd_cache_failed_moves"
CACHE_CORRUPT_FILES = "epd_cache_corrupt_files"
CACHE_REMOVED = "epd_cache_removed"
BLOB_BYTES = "epd_blob_bytes"
QUEUE_MESSAGES = "epd_queue_messages"
INFLIGHT_ITEMS = "epd_inflight_items"
INFLIGHT_BYTES = "epd_inflight_bytes"
WORKER_READY = "epd_worker_ready"
WORKER_PREFIX = "epd_worker_"

#: Counters that are not totals; they are shown as gauges.
PEAKS = frozenset(
    {
        Count.ENCODE_BATCH_PEAK,
        Count.ENCODER_MEMORY,
        Count.WORKER_MEMORY,
        Count.STAGING_MEMORY,
        Count.GRAPHS,
        Count.GRAPH_MEMORY,
        Count.GRAPH_PADDING_SHARE,
    }
)

_DROPPED = (
    "{} that no job waited for any more when they were to be {}: cancelled, or made final by another run."
)

COUNT_HELP = {
    Count.FETCH_ITEMS: "Items fetched.",
    Count.FETCH_FAILURES: "Items whose fetch failed.",
    Count.FETCH_BYTES: "Bytes downloaded.",
    Count.FETCH_SECONDS: "Seconds spent downloading, over all threads.",
    Count.DOWNLOADS: "Bodies downloaded.",
    Count.NOT_MODIFIED: "URLs whose server answered that nothing changed, without a body.",
    Count.SAVED_BYTES: "Bytes of URLs that were not downloaded, because their embeddings were cached.",
    Count.CACHE_HITS: "Wanted embeddings that were cached.",
    Count.CACHE_MISSES: "Wanted embeddings that were not cached.",
    Count.FLIGHTS_JOINED: "Wanted embeddings that another encode was already making.",
    Count.DECODE_ITEMS: "Items decoded.",
    Count.DECODE_FAILURES: "Items whose decoding failed.",
    Count.DECODE_SECONDS: "Seconds spent decoding, over all processes.",
    Count.ENCODE_ITEMS: "Parts encoded.",
    Count.ENCODE_FAILURES: "Parts whose encoding failed.",
    Count.ENCODE_BATCHES: "Batches encoded.",
    Count.ENCODE_TOKENS: "Rows of embeddings made.",
    Count.ENCODE_SECONDS: "Seconds in which the device encoded.",
    Count.SEGMENTS_REUSED: "Windows of audio and groups of frames whose rows were cached.",
    Count.SEGMENTS_ENCODED: "Windows of audio and groups of frames that were encoded.",
    Count.ENCODE_BATCH_PEAK: "Parts in the largest batch so far.",
    Count.FETCH_EXPIRED: "Items whose deadline had passed before they were fetched.",
    Count.FETCH_DROPPED: _DROPPED.format("Items", "fetched"),
    Count.DECODE_EXPIRED: "Items whose deadline had passed before they were decoded.",
    Count.DECODE_DROPPED: _DROPPED.format("Items", "decoded"),
    Count.ENCODE_EXPIRED: "Parts whose deadline had passed before they were encoded.",
    Count.ENCODE_DROPPED: _DROPPED.format("Parts", "encoded"),
    Count.ENCODE_HANGS: "Batches that hung; each ended its worker.",
    Count.ENCODER_MEMORY: "Bytes of an encoder's weights, tables and static buffers, measured.",
    Count.WORKER_MEMORY: "Bytes that a GPU worker holds on its device: weights, graphs and staging.",
    Count.STAGING_MEMORY: "Bytes of page-locked host memory for copies to the device.",
    Count.GRAPHS: "Captured forwards.",
    Count.GRAPH_MEMORY: "Bytes of the device that captured forwards and their inputs take, measured.",
    Count.GRAPH_HITS: "Forwards that were replayed.",
    Count.GRAPH_MISSES: "Forwards that no captured graph fits.",
    Count.GRAPH_DECLINED: "Forwards whose padding would have cost more than a replay saves.",
    Count.GRAPH_UNITS: "Units (images, windows or packed rows) that were replayed.",
    Count.GRAPH_PADDING: "Units of padding that were replayed with them.",
    Count.GRAPH_PADDING_SHARE: "Padding as a fraction of all replayed units, 0 to 1.",
    Count.REAPED_MESSAGES: "Messages published again for flights whose lease had expired.",
    Count.SWEPT_FILES: "Files that were no longer in use and were deleted.",
    Count.RETRIED_ITEMS: "Items sent back to fetch because their bytes were gone.",
}


@dataclass(frozen=True, slots=True)
class ApiMetrics:
    """The metrics that an API process counts itself."""

    requests: Counter
    request_seconds: Histogram
    items: Counter
    jobs: Counter
    waiting: Gauge
    disconnects: Counter
    saved_bytes: Counter


def api_metrics(registry: CollectorRegistry) -> ApiMetrics:
    """Create the API's own metrics in a registry; call it once per registry."""
    return ApiMetrics(
        requests=Counter(
            "epd_http_requests_total", "Requests answered.", ["method", "route", "status"], registry=registry
        ),
        request_seconds=Histogram(
            "epd_http_request_seconds",
            "Seconds to answer a request.",
            ["method", "route"],
            buckets=_BUCKETS,
            registry=registry,
        ),
        items=Counter("epd_items_total", "Items answered.", ["type", "result"], registry=registry),
        jobs=Counter("epd_jobs_total", "Jobs that ended in a state.", ["state"], registry=registry),
        waiting=Gauge("epd_waiting_requests", "Requests that wait for their job.", registry=registry),
        disconnects=Counter(
            "epd_disconnect_cancels_total", "Jobs cancelled because the client left.", registry=registry
        ),
        saved_bytes=Counter(
            "epd_saved_bytes_total",
            "Bytes of URLs that needed no worker, because their embeddings were cached.",
            registry=registry,
        ),
    )
