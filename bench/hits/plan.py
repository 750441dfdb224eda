"""What the load process is told and what it tells: JSON through its pipes."""

from __future__ import annotations

from pydantic import Field

from epd.contracts.wire import Wire


class Request(Wire):
    """One request's JSON body, and the keys that its answer has to name, in order."""

    body: str
    keys: tuple[str, ...]


class Plan(Wire):
    """A run: as fast as ``connections`` allow, or at ``rate`` requests a second; then ``seconds`` long."""

    port: int
    requests: tuple[Request, ...]
    connections: int = Field(ge=1)
    seconds: float = Field(gt=0)
    rate: float | None = None
    seed: int = 1


class RoundsPlan(Wire):
    """Turns of as fast as ``connections`` allow, each followed by one of ``share`` of that.

    ``seconds`` is the length of a turn at the share, on ``connections_at_share``; the other is a third of it.
    """

    port: int
    requests: tuple[Request, ...]
    connections: int = Field(ge=1)
    connections_at_share: int = Field(ge=1)
    rounds: int = Field(ge=1)
    seconds: float = Field(gt=0)
    share: float = Field(gt=0, lt=1)
    seed: int = 1


class Round(Wire):
    """A turn at ``rate`` requests a second; latencies are seconds from a request's planned time."""

    rate: float
    latencies: tuple[float, ...]


class RoundsOutcome(Wire):
    """All turns. ``wrong`` and ``unsent`` as in ``Outcome``."""

    rounds: tuple[Round, ...]
    wrong: tuple[str, ...] = ()
    unsent: int = 0


class Outcome(Wire):
    """What came of a run. Latencies are seconds; with a rate they count from the planned time of a request.

    ``cpu`` are seconds of CPU of the load itself. ``wrong`` holds what was amiss with answers; figures count
    only where it is empty. ``unsent`` are requests whose planned time came and for which no connection was
    free until the end.
    """

    answered: int
    seconds: float
    p50: float
    p99: float
    worst: float
    cpu: float
    wrong: tuple[str, ...] = ()
    unsent: int = 0
