"""Freeing the bytes that came inside requests, once the jobs that hold them are over. Any process may.

A job that is over never begins again, and no id is used twice; so what was decided here stays right, however
late it is done.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from epd.store.values import InlineHolder

if TYPE_CHECKING:
    from epd.store.base import Store

#: Digests that are looked at in one round.
_MOST_DIGESTS = 4096
#: A job is written a moment after its bytes, and workers end it a moment after its deadline; in seconds.
GRACE = 60.0


def release_inline(store: Store, now: float) -> int:
    """End what finished jobs hold and remove what nobody holds then; returns how many files went.

    Args:
        store: The store and its blob folder.
        now: Unix seconds.

    Raises:
        StoreUnavailable: the store does not answer, so nothing was removed.
    """
    holders = store.blobs.inline_holders(_MOST_DIGESTS)
    jobs = sorted({holder.job_id for holder in holders if holder.job_id})
    open_parts = dict(zip(jobs, store.jobs.open_parts(jobs), strict=True))
    return store.blobs.drop_inline(
        [holder for holder in holders if _is_over(holder, open_parts.get(holder.job_id), now)]
    )


def _is_over(holder: InlineHolder, open_parts: int | None, now: float) -> bool:
    """Whether a holder's job is final, past its time, or was never written (nor will be)."""
    if not holder.job_id or now > holder.until + GRACE:
        return True
    return now > holder.since + GRACE if open_parts is None else open_parts == 0
