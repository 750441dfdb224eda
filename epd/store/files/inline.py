"""Bytes that came inside a request: one file per digest, which is kept exactly as long as a job holds it.

i-{sha256}                   the bytes
.inline/{sha256}/{job id}    empty: this job holds the bytes; the modification time is the end of the hold

The folder itself records who holds what, as the ledger does, so losing the server's data loses no room. All
changes are made under the ledger's lock. The bytes are written after their first holder and deleted before
the holders' folder, so a kill between two steps leaves either bytes that are held or a folder that the next
round deletes. A job that brings the same bytes while they are being deleted finds them or writes them again.
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import groupby
from operator import attrgetter
from pathlib import Path

from epd.contracts.errors import BlobSpaceFull
from epd.store.files.ledger import FolderLedger
from epd.store.values import InlineHolder

#: How the name of a file of inline bytes begins.
INLINE = "i-"

_HOLDERS = ".inline"


class InlineFolder:
    """Inline bytes and their holders in one blob folder. Safe across processes."""

    def __init__(self, root: Path, ledger: FolderLedger) -> None:
        """``ledger`` is that of the same folder."""
        self._root = root
        self._holders = root / _HOLDERS
        self._ledger = ledger

    def path(self, media_id: str) -> Path:
        """The file of a digest, whether or not it exists."""
        return self._root / f"{INLINE}{media_id}"

    def join(self, media_id: str, job_id: str, until: float) -> bool:
        """Let a job hold bytes that exist, at most until ``until`` in Unix seconds. False if there are none.

        Raises:
            BlobSpaceFull: the ledger's lock was not free in time.
        """
        while self.path(media_id).exists():
            with self._ledger.locked() as book:
                if not self.path(media_id).exists():
                    return False
                self._hold(media_id, job_id, until)
                if book.is_current():
                    return True
        return False

    def put(self, name: str, media_id: str, job_id: str, until: float) -> None:
        """Turn a finished source file into the bytes of a digest, held by a job. Raises as ``join`` does."""
        source, target = self._root / name, self.path(media_id)
        try:
            with self._ledger.locked() as book:
                self._hold(media_id, job_id, until)
                replaced = target.stat().st_size if target.exists() else 0
                source.replace(target)  # Equal digests are equal bytes.
                book.add(-replaced)
        except BlobSpaceFull:
            self._ledger.delete([source])
            raise

    def holders(self, most: int) -> list[InlineHolder]:
        """All holders. Of more than ``most`` digests it takes a random choice, so that each gets its turn.

        A digest without a holder (its process died while it freed the bytes) has an empty job id.
        """
        digests = _names_in(self._holders)
        if len(digests) > most:
            digests = random.sample(digests, most)
        return [holder for media_id in digests for holder in self._holders_of(media_id)]

    def drop(self, holders: Sequence[InlineHolder]) -> int:
        """Remove holders, and delete the bytes that have none left. Returns how many files were deleted.

        If the lock is not free in time, the rest is left to the next round.
        """
        files = 0
        by_digest = attrgetter("media_id")
        with suppress(BlobSpaceFull):
            for media_id, group in groupby(sorted(holders, key=by_digest), by_digest):
                files += self._drop(media_id, [holder.job_id for holder in group])
        return files

    def _drop(self, media_id: str, job_ids: Sequence[str]) -> int:
        with suppress(FileNotFoundError), self._ledger.locked() as book:  # There may never have been a file.
            folder = self._holders / media_id
            for job_id in filter(None, job_ids):
                (folder / job_id).unlink(missing_ok=True)
            if _names_in(folder) or not book.is_current():
                return 0
            nbytes = self._remove(media_id)
            with suppress(FileNotFoundError):
                folder.rmdir()
            if nbytes is not None:
                book.add(-nbytes)
                return 1
        return 0

    def _remove(self, media_id: str) -> int | None:
        try:
            nbytes = self.path(media_id).stat().st_size
            self.path(media_id).unlink()
        except FileNotFoundError:
            return None
        return nbytes

    def _hold(self, media_id: str, job_id: str, until: float) -> None:
        folder = self._holders / media_id
        folder.mkdir(parents=True, exist_ok=True)
        (folder / job_id).touch()
        os.utime(folder / job_id, (until, until))

    def _holders_of(self, media_id: str) -> Iterator[InlineHolder]:
        empty = True
        for job_id in _names_in(self._holders / media_id):
            empty = False
            with suppress(FileNotFoundError):
                status = (self._holders / media_id / job_id).stat()
                yield InlineHolder(media_id, job_id, since=status.st_ctime, until=status.st_mtime)
        if empty:
            yield InlineHolder(media_id)


def _names_in(folder: Path) -> list[str]:
    try:
        return os.listdir(folder)
    except (FileNotFoundError, NotADirectoryError):
        return []
