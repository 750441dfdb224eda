"""What the demo promises, each checked on the answers that it got."""

from __future__ import annotations

from demo.table import named_parts
from epd.contracts.answers import JobAnswer, PartAnswer
from epd.contracts.errors import EpdError
from epd.contracts.job import State

MAX_WORD_ERROR_RATE = 0.10


class DemoFailed(EpdError):
    """A promise of the demo did not hold; the message says which."""

    code = "demo_failed"


def require(held: bool, message: str) -> None:
    """Raises ``DemoFailed`` with ``message`` unless ``held``."""
    if not held:
        raise DemoFailed(message)


def require_done(job: JobAnswer) -> None:
    """Every item and track has an embedding."""
    failed = [f"{name}: {_reason(part)}" for name, part in named_parts(job) if part.embedding is None]
    require(not failed and job.state is State.DONE, f"job is {job.state}; " + "; ".join(failed))


def require_fresh(job: JobAnswer) -> None:
    """Nothing came from the cache."""
    cached = [name for name, part in named_parts(job) if part.cached]
    require(not cached, f"already cached in the first run: {', '.join(cached)}")


def require_same_from_cache(first: JobAnswer, second: JobAnswer) -> None:
    """The second run gave the same embeddings as the first, all from the cache."""
    encoded = [name for name, part in named_parts(second) if not part.cached]
    require(not encoded, f"not from the cache in the second run: {', '.join(encoded)}")
    require(part_keys(first) == part_keys(second), "the two runs gave different embedding keys")


def part_keys(job: JobAnswer) -> dict[str, str]:
    """Embedding keys by the part's name."""
    return {name: part.embedding.key for name, part in named_parts(job) if part.embedding is not None}


def _reason(part: PartAnswer) -> str:
    return f"{part.error.code}: {part.error.message}" if part.error else str(part.state)
