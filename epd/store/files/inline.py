"""Bytes that came inside a request: one file a digest, kept exactly as long as a job holds it.

i-{sha256}                     the bytes
.inline/{sha256}/{job id}      empty: that job holds them; its modification time says until when at most

Who holds what stands in the folder itself, as the ledger's book does, so a lost store loses no room. Every
change is made under the ledger's lock. A file is put after its holder and removed before its holders' folder,
so a kill between two steps leaves either a file that is held or a folder that the next round removes; and a
job that arrives with the same bytes while they are being removed either finds them or writes them anew.
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

#: First letters of the name of a file of inline bytes.
INLINE = "i-"

_HOLDERS = ".inline"


class InlineFolder:
    """Inline bytes and their holders in one blob folder. Safe over processes."""

    def __init__(self, root: Path, ledger: FolderLedger) -> None:
        """``ledger`` is that of the same folder."""
        self._root = root
        self._holders = root / _HOLDERS
        self._ledger = ledger

    def path(self, media_id: str) -> Path:
        """Where the bytes of a digest lie, whether or not they are there."""
        return self._root / f"{INLINE}{media_id}"

    def join(self, media_id: str, job_id: str, until: float) -> bool:
        """Have a job hold bytes that are there, until Unix time ``until`` at most; False: they are not.

        Raises:
            BlobSpaceFull: the ledger's lock could not be had in time.
        """
        if not self.path(media_id).exists():
            return False
        with self._ledger.locked():
            if not self.path(media_id).exists():
                return False
            self._hold(media_id, job_id, until)
            return True

    def put(self, name: str, media_id: str, job_id: str, until: float) -> None:
        """Turn a finished source file into the bytes of that digest, held by a job; raises as ``join``."""
        source, target = self._root / name, self.path(media_id)
        try:
            with self._ledger.locked():
                self._hold(media_id, job_id, until)
                double = target.stat().st_size if target.exists() else 0
                source.replace(target)  # equal digests are equal bytes
        except BlobSpaceFull:
            with suppress(FileNotFoundError):
                nbytes = source.stat().st_size
                source.unlink()
                self._ledger.subtract(nbytes)
            raise
        self._ledger.subtract(double)

    def holders(self, most: int) -> list[InlineHolder]:
        """Who holds what; a random choice where there are more than ``most`` digests, so that all get a turn.

        A digest without a holder (a process died while it freed it) is given with an empty job id.
        """
        digests = _names_in(self._holders)
        if len(digests) > most:
            digests = random.sample(digests, most)
        return [holder for media_id in digests for holder in self._holders_of(media_id)]

    def drop(self, holders: Sequence[InlineHolder]) -> int:
        """End what these hold, and remove the bytes that nobody holds then; returns how many files went.

        A lock that cannot be had in time leaves the rest to the next round.
        """
        files = 0
        by_digest = attrgetter("media_id")
        with suppress(BlobSpaceFull):
            for media_id, group in groupby(sorted(holders, key=by_digest), by_digest):
                files += self._drop(media_id, [holder.job_id for holder in group])
        return files

    def _drop(self, media_id: str, job_ids: Sequence[str]) -> int:
        nbytes = None
        with suppress(FileNotFoundError), self._ledger.locked():  # nothing was ever written there
            folder = self._holders / media_id
            for job_id in filter(None, job_ids):
                (folder / job_id).unlink(missing_ok=True)
            if _names_in(folder):
                return 0
            nbytes = self._remove(media_id)
            with suppress(FileNotFoundError):
                folder.rmdir()
        if nbytes is None:
            return 0
        self._ledger.subtract(nbytes)
        return 1

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
