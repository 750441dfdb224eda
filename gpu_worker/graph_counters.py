"""What captured forwards do, as it stands in a heartbeat's counters."""

from __future__ import annotations

from collections.abc import Mapping

from epd.telemetry.counters import Count, counter_key
from gpu_worker.engine.graphs.figures import GraphFigures


def graph_counters(figures: Mapping[str, GraphFigures]) -> dict[str, float]:
    """Counters of every encoder; none where nothing is captured."""
    return {
        counter_key(name, encoder): float(value)
        for encoder, own in figures.items()
        for name, value in _values(own).items()
    }


def _values(own: GraphFigures) -> dict[Count, float]:
    return {
        Count.GRAPHS: own.graphs,
        Count.GRAPH_MEMORY: own.memory,
        Count.GRAPH_HITS: own.hits,
        Count.GRAPH_MISSES: own.misses,
        Count.GRAPH_DECLINED: own.declined,
        Count.GRAPH_UNITS: own.units,
        Count.GRAPH_PADDING: own.padding,
        Count.GRAPH_PADDING_SHARE: own.padding_share,
    }
