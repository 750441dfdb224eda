"""A ring of page-locked host memory that uploads go through; its size bounds what may be pinned for them.

A place in the ring is written again only after the copy that reads it has ended. The staging thread asks for
that and naps in between: it never blocks inside the device's own calls, and while it waits the device runs.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from gpu_worker.engine.device import DeviceHung, is_out_of_memory
from gpu_worker.engine.streams import Mark

_log = logging.getLogger(__name__)

#: Places begin at multiples of this, the grain of DMA transfers.
_ALIGNMENT = 256
#: An item larger than this part of the ring goes in pieces: one is written while the one before is copied.
_PIECES = 4
#: Seconds for one copy of a piece, which takes milliseconds.
_PATIENCE = 60.0
_NAP = 50e-6
#: Less than this is not worth a ring.
_LEAST = 1 << 20

#: Starts the copy of a place (uint8) that holds the source's bytes from this offset on.
StartCopy = Callable[[Tensor, int], Mark]


@dataclass(frozen=True, slots=True)
class _Span:
    """Bytes of the ring that a copy reads until its mark."""

    begin: int
    end: int
    mark: Mark


class PinnedRing:
    """Bytes handed to copies in order. For one thread, and for copies of one stream."""

    def __init__(self, memory: Tensor, patience: float = _PATIENCE) -> None:
        """``memory`` is uint8 [bytes], page-locked."""
        self._memory = memory
        self._patience = patience
        self._piece = max(1, memory.numel() // _PIECES)
        self._head = 0
        self._in_flight: deque[_Span] = deque()

    @property
    def nbytes(self) -> int:
        """Bytes of the ring."""
        return self._memory.numel()

    def send(self, source: Tensor, start_copy: StartCopy) -> Mark | None:
        """Bring uint8 [bytes] into the ring and start their copies; gives the last one's mark.

        Raises:
            DeviceHung: a copy before did not end in time.
        """
        mark: Mark | None = None
        for offset in range(0, source.numel(), self._piece):
            piece = source[offset : offset + self._piece]
            begin = self._room(piece.numel())
            end = begin + piece.numel()
            place = self._memory[begin:end]
            place.copy_(piece)
            mark = start_copy(place, offset)
            self._in_flight.append(_Span(begin, end, mark))
            self._head = -(-end // _ALIGNMENT) * _ALIGNMENT
        return mark

    def _room(self, nbytes: int) -> int:
        """Where so many bytes may be written, after waiting for the copies that still read there."""
        begin = self._head if self._head + nbytes <= self.nbytes else 0
        while self._in_flight and self._in_flight[0].mark.reached():
            self._in_flight.popleft()
        # The oldest first: copies of one stream end in order.
        while any(span.begin < begin + nbytes and begin < span.end for span in self._in_flight):
            self._await(self._in_flight.popleft().mark)
        return begin

    def _await(self, mark: Mark) -> None:
        end = time.monotonic() + self._patience
        while not mark.reached():
            if time.monotonic() > end:
                raise DeviceHung(f"an upload has not ended after {self._patience:.0f} s")
            time.sleep(_NAP)


def open_ring(pinned: Callable[[int], Tensor], wanted: int) -> PinnedRing | None:
    """A ring of ``wanted`` bytes, or of what the machine lets us pin; None where that is next to nothing."""
    size = wanted
    while size >= _LEAST:
        try:
            return PinnedRing(pinned(size))
        except Exception as error:
            if not is_out_of_memory(error):
                raise
            _log.warning("%d bytes of pinned memory were refused: %s", size, error)
        size //= 2
    _log.warning("uploads go without pinned memory, and so hold the staging thread up")
    return None
