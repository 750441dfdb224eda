"""From blobs to device tensors: the raw media of each item is mapped, checked and uploaded."""

from __future__ import annotations

import errno
import logging
import mmap
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from epd.contracts.errors import BlobMissing, EncodeFailed, EpdError
from epd.contracts.media import RawAudio, RawFrames, RawImage, RawMedia
from gpu_worker.engine.device import Device, is_device_lost, is_out_of_memory
from gpu_worker.engine.slot import Failed, Planned, Settled, Slot

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class StagedItem:
    """A planned slot with its raw media on the device, and the seconds that staging took."""

    planned: Planned
    raw: Tensor
    seconds: float

    def without_raw(self) -> RanItem:
        """The item without its media, which may then leave the device."""
        return RanItem(self.planned, self.seconds)


@dataclass(frozen=True, slots=True)
class RanItem:
    """A planned slot that was run, and the seconds that staging it took."""

    planned: Planned
    seconds: float


@dataclass(frozen=True, slots=True)
class Staging:
    """The items of a batch that were staged, those that failed, and those that there is no room for yet."""

    items: tuple[StagedItem, ...] = ()
    failed: tuple[Settled, ...] = ()
    rest: tuple[Planned, ...] = ()


def stage(batch: Sequence[Planned], device: Device, *, alone: bool) -> Staging:
    """Stage every item of a batch; an item whose blob is missing or wrong fails alone.

    If the device has no more room, the remaining items are left as ``rest`` until earlier batches have freed
    their memory. ``alone`` means that there are no earlier batches, so an item without room fails.

    Raises:
        Exception: the device is lost (``is_device_lost``).
    """
    items: list[StagedItem] = []
    failed: list[Settled] = []
    for index, planned in enumerate(batch):
        start = time.perf_counter()
        try:
            raw = device.upload(map_blob(planned.slot))
        except Exception as error:
            if is_device_lost(error):
                raise
            if is_out_of_memory(error):
                device.free_cache()
                if items or not alone:
                    return Staging(tuple(items), tuple(failed), tuple(batch[index:]))
            failed.append(Settled(planned.slot, Failed(_as_item_error(planned.slot, error))))
            continue
        items.append(StagedItem(planned, raw, time.perf_counter() - start))
    return Staging(tuple(items), tuple(failed))


def map_blob(slot: Slot) -> Tensor:
    """The slot's blob as a host tensor: uint8 [H, W, 3] or [F, H, W, 3], or float32 [samples].

    Nothing is copied, unless the slot is a piece whose segments are not adjacent. The mapping is private, and
    lives as long as the tensor, even if the file is removed.

    Raises:
        BlobMissing: the file is gone, or has another size than its shape needs.
        MemoryError: the machine has no memory for the mapping.
    """
    shape, dtype = tensor_form(slot.raw)
    try:
        with slot.path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            if size != torch.Size(shape).numel() * dtype.itemsize:
                raise BlobMissing(f"blob {slot.raw.blob.name} has {size} bytes, not those of {shape}")
            mapping = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
    except OSError as error:
        if error.errno == errno.ENOMEM:
            raise MemoryError(f"blob {slot.raw.blob.name} cannot be mapped") from error
        raise BlobMissing(f"blob {slot.raw.blob.name}: {error.strerror}") from error
    whole = torch.frombuffer(mapping, dtype=dtype).view(shape)
    runs = [slice(None)] if slot.piece is None else slot.piece.runs
    return whole[runs[0]] if len(runs) == 1 else torch.cat([whole[run] for run in runs])


def tensor_form(raw: RawMedia) -> tuple[tuple[int, ...], torch.dtype]:
    """Shape and dtype of decoded raw media."""
    match raw:
        case RawImage():
            return (raw.height, raw.width, 3), torch.uint8
        case RawFrames():
            return (raw.frames, raw.height, raw.width, 3), torch.uint8
        case RawAudio():
            return (raw.samples,), torch.float32


def _as_item_error(slot: Slot, error: Exception) -> EpdError:
    if isinstance(error, EpdError):
        return error
    if is_out_of_memory(error):
        return EncodeFailed("out of memory")
    _log.error("staging of slot %s raised", slot.id, exc_info=error)
    return EncodeFailed(f"staging failed: {type(error).__name__}")
