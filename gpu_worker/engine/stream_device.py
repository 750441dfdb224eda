"""A device whose copies run beside its compute: blob, pinned ring, device; and rows back to pinned memory."""

from __future__ import annotations

import logging
from collections.abc import Sequence

import torch
from torch import Tensor

from gpu_worker.engine.device import Stamp, is_out_of_memory
from gpu_worker.engine.pinned_ring import open_ring
from gpu_worker.engine.streams import Mark, Streams

_log = logging.getLogger(__name__)


class StreamDevice:
    """``Device`` over streams. Only ``download`` waits, on the thread that brings rows home."""

    def __init__(self, streams: Streams, staging_bytes: int) -> None:
        self._streams = streams
        self._ring = open_ring(streams.pinned, staging_bytes)
        #: The last copy of each upload that no compute has been ordered behind yet.
        self._copies: dict[int, Mark] = {}

    @property
    def kind(self) -> str:
        """That of the streams."""
        return self._streams.kind

    def upload(self, host: Tensor) -> Tensor:
        """Start the copy of a host tensor through the ring; returns before it is done.

        Raises what ``is_out_of_memory`` knows where the device has no room for it.
        """
        target = self._streams.target(host.shape, host.dtype)
        source, sink = _bytes_of(host), _bytes_of(target)
        if self._ring is None:
            mark: Mark | None = self._streams.copy_in(sink, source)
        else:
            mark = self._ring.send(
                source, lambda place, at: self._streams.copy_in(sink[at : at + place.numel()], place)
            )
        if mark is not None:
            self._copies[id(target)] = mark
        return target

    def await_uploads(self, uploaded: Sequence[Tensor]) -> None:
        """Order compute behind the copies of these uploads, and behind no others'."""
        marks = [self._copies.pop(id(one)) for one in uploaded if id(one) in self._copies]
        self._streams.compute_after(marks, uploaded)

    def stamp(self) -> Stamp:
        """A mark in the compute stream."""
        return self._streams.mark()

    def download(self, rows: Tensor, ready: Stamp) -> Tensor:
        """Copy rows out once they are computed; the calling thread alone waits."""
        host = self._host_memory(rows.nbytes).view(rows.dtype).view(rows.shape)
        assert isinstance(ready, Mark)
        self._streams.copy_out(rows, host, ready).wait()
        return host

    def free_cache(self) -> None:
        """As the streams do."""
        self._streams.free_cache()

    def staging_bytes(self) -> int:
        """Pinned host memory: the ring, and rows on their way out."""
        return self._streams.pinned_bytes()

    def _host_memory(self, nbytes: int) -> Tensor:
        """Pinned memory; plain memory where there is no more, into which the driver copies more slowly."""
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
