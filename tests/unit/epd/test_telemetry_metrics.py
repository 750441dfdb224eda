"""Metrics: every counter has a name, the fleet is shown, and a store that is down is no error."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from epd.contracts.errors import StoreUnavailable
from epd.contracts.responses import CacheTotals, Tier, TierStats
from epd.store.values import Heartbeat, StoreStats
from epd.telemetry import metrics
from epd.telemetry.counters import Count, Counters, counter_key, split_counter_key
from epd.telemetry.fleet import build_registry


def _values(registry: CollectorRegistry) -> dict[tuple[str, str], float]:
    """Samples by name and the values of their labels in the order of the labels' names."""
    text = generate_latest(registry).decode()
    return {
        (sample.name, ",".join(value for _, value in sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def _beat(name: str, *, ready: bool = True, counters: dict[str, float] | None = None) -> Heartbeat:
    return Heartbeat(name=name, kind="encode", host="h", pid=1, at=0, ready=ready, counters=counters or {})


def test_counters_add_up_over_threads() -> None:
    counters = Counters()
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda _: counters.add(Count.FETCH_ITEMS), range(1000)))
    counters.add(Count.ENCODE_TOKENS, 5, encoder="tiny/en")
    for size in (3, 9, 4):
        counters.peak(Count.ENCODE_BATCH_PEAK, size)
    expected = {"fetch_items": 1000, "encode_tokens/tiny/en": 5, "encode_batch_peak": 9}
    assert counters.snapshot() == expected


def test_a_counter_key_reads_back() -> None:
    assert split_counter_key(counter_key(Count.ENCODE_ITEMS, "a")) == ("encode_items", "a")
    assert split_counter_key(counter_key(Count.ENCODE_ITEMS)) == ("encode_items", "")


@pytest.mark.parametrize("count", list(Count))
def test_every_counter_has_its_metric(count: Count) -> None:
    registry = build_registry(heartbeats=lambda: [_beat("w", counters={count.value: 3})])
    suffix = "" if count in metrics.PEAKS else "_total"
    assert _values(registry)[f"epd_worker_{count.value}{suffix}", ",encode,w"] == 3
    assert metrics.COUNT_HELP[count].endswith(".")


def test_the_fleet_is_shown() -> None:
    beats = [
        _beat("a", counters={"encode_items/tiny": 2, "encode_items": 2, "of_a_later_version": 1}),
        _beat("b", ready=False),
    ]
    registry = build_registry(
        heartbeats=lambda: beats,
        stats=lambda: StoreStats(entries=1, nbytes=2, limit=3),
        blob_bytes=lambda: 4,
        queues=lambda: {"fetch": 5, "decode": 0},
    )
    found = _values(registry)
    assert found["epd_store_up", ""] == 1
    assert found["epd_worker_ready", "h,encode,a"] == 1
    assert found["epd_worker_ready", "h,encode,b"] == 0
    assert found["epd_worker_encode_items_total", "tiny,encode,a"] == 2
    assert [found[name, ""] for name in ("epd_embedding_cache_entries", "epd_embedding_cache_bytes")] == [
        1,
        2,
    ]
    assert (found["epd_embedding_cache_limit_bytes", ""], found["epd_blob_bytes", ""]) == (3, 4)
    assert (found["epd_queue_messages", "fetch"], found["epd_queue_messages", "decode"]) == (5, 0)
    assert not any("later_version" in name for name, _ in found)


def test_the_cache_is_shown_by_tier() -> None:
    totals = CacheTotals(hits_l1=1, hits_l2=2, misses=3, evicted_l1=4, evicted_l2=5, demotions=6)
    totals = totals.model_copy(
        update={"promotions": 7, "failed_moves": 8, "corrupt": 9, "removed": 10, "dropped": 14}
    )
    second = TierStats(entries=11, nbytes=12, limit=13)
    stats = StoreStats(entries=1, nbytes=2, limit=3, l2=second, totals=totals)
    found = _values(build_registry(heartbeats=list, stats=lambda: stats))
    sizes = [found[f"epd_cache_tier_{name}", "l2"] for name in ("entries", "bytes", "limit_bytes")]
    assert sizes == [11, 12, 13]
    assert found["epd_cache_tier_bytes", "l1"] == 2
    by_tier = [found[f"epd_cache_{name}_total", tier] for name in ("hits", "evictions") for tier in Tier]
    assert by_tier == [1, 2, 4, 5]
    names = ("misses", "demotions", "promotions", "failed_moves", "corrupt_files", "removed", "dropped")
    assert [found[f"epd_cache_{name}_total", ""] for name in names] == [3, 6, 7, 8, 9, 10, 14]
    alone = _values(build_registry(heartbeats=list, stats=lambda: StoreStats(entries=1, nbytes=2, limit=3)))
    assert ("epd_cache_tier_bytes", "l2") not in alone


def test_a_store_that_is_down_is_shown_not_raised() -> None:
    def down() -> list[Heartbeat]:
        raise StoreUnavailable("down")

    registry = build_registry(heartbeats=down)
    metrics.api_metrics(registry)
    found = _values(registry)
    assert found["epd_store_up", ""] == 0
    assert found["epd_waiting_requests", ""] == 0


def test_the_api_counts_for_itself() -> None:
    registry = build_registry(heartbeats=list)
    api = metrics.api_metrics(registry)
    api.requests.labels("GET", "/v1/models", "200").inc()
    api.request_seconds.labels("GET", "/v1/models").observe(0.2)
    api.items.labels("image", "cached").inc(3)
    api.jobs.labels("done").inc()
    api.waiting.set(2)
    found = _values(registry)
    assert found["epd_http_requests_total", "GET,/v1/models,200"] == 1
    assert found["epd_items_total", "cached,image"] == 3
    assert found["epd_jobs_total", "done"] == 1
    assert found["epd_waiting_requests", ""] == 2


def test_reading_the_store_is_left_to_the_scrape() -> None:
    def never() -> list[Heartbeat]:
        pytest.fail("registering must not read")

    build_registry(heartbeats=never)
