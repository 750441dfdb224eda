"""The registry of an API process: its own metrics, and those of the whole fleet read from the store.

Each scrape reads heartbeats and sizes once. A store that does not answer gives ``epd_store_up 0``, no error.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from epd.contracts.errors import StoreUnavailable
from epd.contracts.job import Priority
from epd.store.values import Heartbeat, Load, StoreStats
from epd.telemetry import metrics
from epd.telemetry.cache_families import cache_families
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
    """A registry that shows the fleet; give it to ``metrics.api_metrics`` for the API's own metrics.

    Args:
        heartbeats: All live workers.
        stats: The size of the embedding cache.
        blob_bytes: Bytes in the blob directory.
        queues: Messages that wait, by queue.
        held: What the admitted jobs of a priority hold.
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
    """Readiness and counters of workers. Counters that no metric is known for are left out."""
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


def _gauge(name: str, text: str, value: float) -> GaugeMetricFamily:
    return GaugeMetricFamily(name, text, value=value)
