"""What an API process counts: requests by route, and the jobs that it answered."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from starlette.types import Scope

from api.hit_lookup import ItemHit
from epd.contracts.answers import JobAnswer
from epd.contracts.job import State
from epd.telemetry.metrics import ApiMetrics


def count_request(metrics: ApiMetrics, scope: Scope, status: int, seconds: float) -> None:
    """Count one request under its route's pattern, so that ids in paths make no new series."""
    route = getattr(scope.get("route"), "path", "unmatched")
    method = scope["method"] if route != "unmatched" else "any"
    metrics.requests.labels(method, route, str(status)).inc()
    metrics.request_seconds.labels(method, route).observe(seconds)


def count_answer(metrics: ApiMetrics, answer: JobAnswer) -> None:
    """Count a job that was answered when it was final, and its items."""
    metrics.jobs.labels(answer.state.value).inc()
    for item in answer.items:
        cached = item.cached and item.state is State.DONE
        metrics.items.labels(item.type.value, "cached" if cached else item.state.value).inc()


def count_hits(metrics: ApiMetrics, hits: Sequence[ItemHit]) -> None:
    """Count a job whose items all were cached, as ``count_answer`` and ``submit`` would."""
    metrics.jobs.labels(State.DONE.value).inc()
    for kind, number in Counter(hit.item.modality for hit in hits).items():
        metrics.items.labels(kind.value, "cached").inc(number)
    metrics.saved_bytes.inc(sum(hit.saved_bytes for hit in hits))
