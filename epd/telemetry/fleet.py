"""The metrics of the whole fleet, which an API process reads from the store at each scrape.

A scrape reads heartbeats and sizes once. When the store does not answer it shows ``epd_store_up 0`` and
raises no error.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from epd.contracts.errors import StoreUnavailable
from epd.contracts.job import Priority
from epd.contracts.responses import CacheTotals, Tier, TierStats
from epd.store.admissions import Load
from epd.store.values import Heartbeat, StoreStats
from epd.telemetry import metrics
from epd.telemetry.counters import Count, split_counter_key

logger = logging.getLogger(__name__)

_COUNT_LABELS = ("worker", "kind", "encoder")


def build_registry(
    *,
    heartbeats: Callable[[], list[Heartbeat]],
    stats: Callable[[], StoreStats] | None = None,
    blob_bytes: Callable[[], int] | None = None,
    queues: Callable[[], Mapping[str, int]] | None = None,
    held: Callable[[Priority], Load] | None = None,
) -> CollectorRegistry:
    """A registry that shows the fleet. ``metrics.api_metrics`` adds the API's own metrics to it.

    Args:
        heartbeats: all live workers.
        stats: the size of the embedding cache.
        blob_bytes: bytes in the blob directory.
        queues: messages that wait, by queue.
        held: items and bytes of the admitted jobs of a priority.
    """
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_FleetCollector(heartbeats, stats, blob_bytes, queues, held))
    return registry


class _FleetCollector(Collector):
    def __init__(
        self,
        heartbeats: Callable[[], list[Heartbeat]],
        stats: Callable[[], StoreStats] | None,
        blob_bytes: Callable[[], int] | None,
        queues: Callable[[], Mapping[str, int]] | None,
        held: Callable[[Priority], Load] | None,
    ) -> None:
        self._heartbeats = heartbeats
        self._stats = stats
        self._blob_bytes = blob_bytes
        self._queues = queues
        self._held = held

    def describe(self) -> Iterable[Metric]:
        """Nothing: registering must not read the store."""
        return []

    def collect(self) -> Iterable[Metric]:
        """All families of the fleet, or ``epd_store_up 0``."""
        up = GaugeMetricFamily(metrics.STORE_UP, "1 when the store answers.")
        try:
            families = [*worker_families(self._heartbeats()), *self._sizes()]
        except StoreUnavailable as error:
            logger.warning("metrics without the fleet: %s", error)
            up.add_metric([], 0)
            return [up]
        up.add_metric([], 1)
        return [up, *families]

    def _sizes(self) -> list[Metric]:
        families: list[Metric] = []
        if self._stats is not None:
            families += cache_families(self._stats())
        if self._blob_bytes is not None:
            families.append(_gauge(metrics.BLOB_BYTES, "Bytes in the blob directory.", self._blob_bytes()))
        if self._queues is not None:
            waiting = GaugeMetricFamily(
                metrics.QUEUE_MESSAGES, "Messages that wait for a worker.", labels=["queue"]
            )
            for queue, count in sorted(self._queues().items()):
                waiting.add_metric([queue], count)
            families.append(waiting)
        if self._held is not None:
            families += _held_families(self._held)
        return families


def _held_families(held: Callable[[Priority], Load]) -> list[Metric]:
    items = GaugeMetricFamily(
        metrics.INFLIGHT_ITEMS, "Items that are admitted and not final.", labels=["priority"]
    )
    nbytes = GaugeMetricFamily(
        metrics.INFLIGHT_BYTES, "Bytes of their media, as far as known.", labels=["priority"]
    )
    for priority in Priority:
        load = held(priority)
        items.add_metric([priority.value], load.items)
        nbytes.add_metric([priority.value], load.nbytes)
    return [items, nbytes]


def worker_families(heartbeats: Iterable[Heartbeat]) -> list[Metric]:
    """Readiness and counters of workers. Counters of unknown names are left out."""
    ready = GaugeMetricFamily(
        metrics.WORKER_READY, "1 when the worker is ready.", labels=["worker", "kind", "host"]
    )
    families = {count: _family(count) for count in Count}
    for beat in heartbeats:
        ready.add_metric([beat.name, beat.kind, beat.host], float(beat.ready))
        for key, value in sorted(beat.counters.items()):
            name, encoder = split_counter_key(key)
            if name in families:
                families[Count(name)].add_metric([beat.name, beat.kind, encoder], value)
    return [ready, *(family for family in families.values() if family.samples)]


def _family(count: Count) -> CounterMetricFamily | GaugeMetricFamily:
    kind = GaugeMetricFamily if count in metrics.PEAKS else CounterMetricFamily
    name, text = f"{metrics.WORKER_PREFIX}{count.value}", metrics.COUNT_HELP[count]
    return kind(name, text, labels=_COUNT_LABELS)


def cache_families(stats: StoreStats) -> list[Metric]:
    """The metrics of the embedding cache. Every API process shows the fleet's totals: do not add them up."""
    return [
        _gauge(metrics.CACHE_ENTRIES, "Entries in the embedding index.", stats.entries),
        _gauge(metrics.CACHE_BYTES, "Bytes of the embeddings in the index.", stats.nbytes),
        _gauge(metrics.CACHE_LIMIT_BYTES, "Limit of those bytes.", stats.limit),
        *_tier_gauges(stats),
        *_totals(stats.totals),
    ]


def _tier_gauges(stats: StoreStats) -> list[Metric]:
    tiers = {Tier.L1: TierStats(entries=stats.entries, nbytes=stats.nbytes, limit=stats.limit)}
    if stats.l2 is not None:
        tiers[Tier.L2] = stats.l2
    entries = GaugeMetricFamily(metrics.CACHE_TIER_ENTRIES, "Files in a tier.", labels=["tier"])
    nbytes = GaugeMetricFamily(metrics.CACHE_TIER_BYTES, "Bytes of a tier's embeddings.", labels=["tier"])
    limits = GaugeMetricFamily(metrics.CACHE_TIER_LIMIT_BYTES, "Limit of those bytes.", labels=["tier"])
    for tier, held in tiers.items():
        entries.add_metric([tier], held.entries)
        nbytes.add_metric([tier], held.nbytes)
        limits.add_metric([tier], held.limit)
    return [entries, nbytes, limits]


def _totals(totals: CacheTotals) -> list[Metric]:
    hits = {Tier.L1: totals.hits_l1, Tier.L2: totals.hits_l2}
    evicted = {Tier.L1: totals.evicted_l1, Tier.L2: totals.evicted_l2}
    return [
        _by_tier(metrics.CACHE_HITS, "Wanted embeddings that were found, by the tier read.", hits),
        _counter(metrics.CACHE_MISSES, "Parts that had to be made, or waited for.", totals.misses),
        _by_tier(metrics.CACHE_EVICTIONS, "Files taken out of a tier for its limit.", evicted),
        _counter(metrics.CACHE_DROPPED, "Evicted embeddings that no tier has any more.", totals.dropped),
        _counter(metrics.CACHE_PROMOTIONS, "Files copied from L2 to L1.", totals.promotions),
        _counter(metrics.CACHE_DEMOTIONS, "Files copied from L1 to L2.", totals.demotions),
        _counter(metrics.CACHE_FAILED_MOVES, "Copies given up, as on a full disk.", totals.failed_moves),
        _counter(metrics.CACHE_CORRUPT_FILES, "Damaged files found and deleted.", totals.corrupt),
        _counter(metrics.CACHE_REMOVED, "Entries taken out by an operator.", totals.removed),
    ]


def _counter(name: str, text: str, value: float) -> Metric:
    return CounterMetricFamily(name, text, value=value)


def _by_tier(name: str, text: str, values: dict[Tier, int]) -> Metric:
    family = CounterMetricFamily(name, text, labels=["tier"])
    for tier, value in values.items():
        family.add_metric([tier], value)
    return family


def _gauge(name: str, text: str, value: float) -> GaugeMetricFamily:
    return GaugeMetricFamily(name, text, value=value)
