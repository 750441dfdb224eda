"""Who delivers encode messages to the desk and acks them: the Celery pool, or a test."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from gpu_worker.verdict import Verdict


class Host(Protocol):
    """Called from the desk's and the engine's threads; none of these may block."""

    def is_withdrawn(self, ticket_id: str) -> bool:
        """Whether the deliverer itself does not want this ticket run any more."""
        ...

    def on_begun(self, ticket_ids: Sequence[str]) -> None:
        """These are in a batch that is about to run."""
        ...

    def on_verdicts(self, verdicts: Sequence[Verdict]) -> None:
        """These have ended and may be acked; then they are to be released at the desk."""
        ...

    def on_fatal(self, error: BaseException) -> None:
        """This process cannot encode any more."""
        ...
