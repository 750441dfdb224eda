"""The metrics of the embedding cache: sizes by tier, hits and misses, evictions and moves."""

from __future__ import annotations

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from epd.contracts.cache import CacheTotals, Tier, TierStats
from epd.store.values import StoreStats
from epd.telemetry import metrics


def cache_families(stats: StoreStats) -> list[Metric]:
    """All of them. Totals are those of the whole fleet: take one API process, or the maximum over all."""
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


def _gauge(name: str, text: str, value: float) -> Metric:
    return GaugeMetricFamily(name, text, value=value)


def _counter(name: str, text: str, value: float) -> Metric:
    return CounterMetricFamily(name, text, value=value)


def _by_tier(name: str, text: str, values: dict[Tier, int]) -> Metric:
    family = CounterMetricFamily(name, text, labels=["tier"])
    for tier, value in values.items():
        family.add_metric([tier], value)
    return family
