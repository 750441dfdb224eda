"""A device whose copies run in parallel with its compute.

An upload goes from the blob through a ring of pinned memory to the device. Rows go back to pinned memory.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from gpu_worker.engine.device import DeviceHung, Mark, Stamp, Streams, is_out_of_memory

_log = logging.getLogger(__name__)

#: Offsets in the ring are multiples of this, the granularity of DMA transfers.
_ALIGNMENT = 256
#: A larger item than one n-th of the ring goes in pieces: one is written while the one before is copied.
_PIECES = 4
#: Seconds that the copy of a piece may take; milliseconds are normal.
_WAIT_SECONDS = 60.0
_POLL = 50e-6
#: Bytes below which a ring is not worth having.
_LEAST = 1 << 20


class StreamDevice:
    """``Device`` over streams. Only ``download`` waits, on the completion thread."""

    def __init__(self, streams: Streams, staging_bytes: int) -> None:
        self._streams = streams
        self._ring = open_ring(streams.pinned, staging_bytes)
        #: The last copy of each upload that compute does not wait for yet, by the id of its tensor.
        self._copies: dict[int, Mark] = {}

    @property
    def kind(self) -> str:
        """The kind of the streams."""
        return self._streams.kind

    def upload(self, host: Tensor) -> Tensor:
        """Start the copy of a host tensor through the ring. Returns before it is done.

        Raises an error for which ``is_out_of_memory`` is true if the device has no room.
        """
        target = self._streams.target(host.shape, host.dtype)
        source, sink = _bytes_of(host), _bytes_of(target)
        if self._ring is None:
            mark: Mark | None = self._streams.copy_in(sink, source)
        else:
            mark = self._ring.send(
                source, lambda part, at: self._streams.copy_in(sink[at : at + part.numel()], part)
            )
        if mark is not None:
            self._copies[id(target)] = mark
        return target

    def await_uploads(self, uploaded: Sequence[Tensor]) -> None:
        """Let compute wait for the copies of these uploads, and for no others."""
        marks = [self._copies.pop(id(one)) for one in uploaded if id(one) in self._copies]
        self._streams.compute_after(marks, uploaded)

    def stamp(self) -> Stamp:
        """A mark in the compute stream."""
        return self._streams.mark()

    def download(self, rows: Tensor, ready: Stamp) -> Tensor:
        """Copy rows out once they are computed. Only the calling thread waits."""
        host = self._host_memory(rows.nbytes).view(rows.dtype).view(rows.shape)
        assert isinstance(ready, Mark)
        self._streams.copy_out(rows, host, ready).wait()
        return host

    def free_cache(self) -> None:
        """Give back the memory that the streams have cached."""
        self._streams.free_cache()

    def staging_bytes(self) -> int:
        """Pinned host memory: the ring, and rows that are being copied out."""
        return self._streams.pinned_bytes()

    def _host_memory(self, nbytes: int) -> Tensor:
        """Pinned memory, or plain memory if there is no more; copies to plain memory are slower."""
        try:
            return self._streams.pinned(nbytes)
        except Exception as error:
            if not is_out_of_memory(error):
                raise
            _log.warning("no %d bytes of pinned memory for rows: %s", nbytes, error)
        return torch.empty(nbytes, dtype=torch.uint8)


def _bytes_of(tensor: Tensor) -> Tensor:
    """The same memory as uint8 [bytes]."""
    return tensor.contiguous().view(-1).view(torch.uint8)


#: Starts the copy of a part of the ring (uint8), which holds the source's bytes from this offset on.
StartCopy = Callable[[Tensor, int], Mark]


@dataclass(frozen=True, slots=True)
class _Span:
    """Bytes of the ring that a copy reads until its mark."""

    begin: int
    end: int
    mark: Mark


class PinnedRing:
    """Pinned memory that uploads pass through, in order. For one thread, and the copies of one stream."""

    def __init__(self, memory: Tensor, wait_seconds: float = _WAIT_SECONDS) -> None:
        """``memory`` is uint8 [bytes], page-locked."""
        self._memory = memory
        self._wait_seconds = wait_seconds
        self._piece = max(1, memory.numel() // _PIECES)
        self._head = 0
        self._in_flight: deque[_Span] = deque()

    @property
    def nbytes(self) -> int:
        """Bytes of the ring."""
        return self._memory.numel()

    def send(self, source: Tensor, start_copy: StartCopy) -> Mark | None:
        """Write uint8 [bytes] to the ring and start their copies. Returns the mark of the last one.

        Raises:
            DeviceHung: an earlier copy did not end in time.
        """
        mark: Mark | None = None
        for offset in range(0, source.numel(), self._piece):
            piece = source[offset : offset + self._piece]
            begin = self._room(piece.numel())
            end = begin + piece.numel()
            part = self._memory[begin:end]
            part.copy_(piece)
            mark = start_copy(part, offset)
            self._in_flight.append(_Span(begin, end, mark))
            self._head = -(-end // _ALIGNMENT) * _ALIGNMENT
        return mark

    def _room(self, nbytes: int) -> int:
        """An offset where so many bytes may be written. Waits for the copies that still read there."""
        begin = self._head if self._head + nbytes <= self.nbytes else 0
        while self._in_flight and self._in_flight[0].mark.reached():
            self._in_flight.popleft()
        # Oldest first: the copies of a stream end in order.
        while any(span.begin < begin + nbytes and begin < span.end for span in self._in_flight):
            self._await(self._in_flight.popleft().mark)
        return begin

    def _await(self, mark: Mark) -> None:
        end = time.monotonic() + self._wait_seconds
        while not mark.reached():
            if time.monotonic() > end:
                raise DeviceHung(f"an upload has not ended after {self._wait_seconds:.0f} s")
            time.sleep(_POLL)


def open_ring(pinned: Callable[[int], Tensor], wanted: int) -> PinnedRing | None:
    """A ring of ``wanted`` bytes, or as much as can be pinned. ``None`` if that is next to nothing."""
    size = wanted
    while size >= _LEAST:
        try:
            return PinnedRing(pinned(size))
        except Exception as error:
            if not is_out_of_memory(error):
                raise
            _log.warning("%d bytes of pinned memory were refused: %s", size, error)
        size //= 2
    _log.warning("uploads go without pinned memory, and so block the staging thread")
    return None
