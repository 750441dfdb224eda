"""What this worker has done, counted in its main process for the heartbeat.

Tasks return what they did as ``{counter name: amount}``. Celery gives the main process the ``repr`` of that,
from prefork children as well as from threads, so children need no other channel.
"""

from __future__ import annotations

import ast

from epd.telemetry.counters import Count, Counters

#: The totals of this process.
TOTALS = Counters()

_CRASHES = {"epd.fetch": Count.FETCH_FAILURES, "epd.decode": Count.DECODE_FAILURES}


def count_result(text: str, totals: Counters = TOTALS) -> None:
    """Count the ``repr`` of what one run of a task returned. Names that are no counters are ignored."""
    try:
        value = ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return
    for name, amount in value.items() if isinstance(value, dict) else ():
        if name in set(Count) and isinstance(amount, int | float):
            totals.add(Count(name), float(amount))


def count_crash(task: str, totals: Counters = TOTALS) -> None:
    """Count a run without a result: the task raised, or its child died."""
    if task in _CRASHES:
        totals.add(_CRASHES[task])
