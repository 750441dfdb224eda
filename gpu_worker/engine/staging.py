"""Blobs to device tensors: each item's raw media is mapped, checked, and on its way to the device."""

from __future__ import annotations

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
from gpu_worker.engine.device import Device, is_device_lost
from gpu_worker.engine.slot import Failed, Planned, Settled, Slot

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class StagedItem:
    """A planned slot with its raw media on the device, and the seconds that staging took."""

    planned: Planned
    raw: Tensor
    seconds: float


@dataclass(frozen=True, slots=True)
class Staging:
    """The items of a batch that were staged, and those that failed alone."""

    items: tuple[StagedItem, ...]
    failed: tuple[Settled, ...]


def stage(batch: Sequence[Planned], device: Device) -> Staging:
    """Stage every item of a batch; one whose blob is gone or wrong fails alone.

    Raises whatever says that the device itself is lost.
    """
    items: list[StagedItem] = []
    failed: list[Settled] = []
    for planned in batch:
        start = time.perf_counter()
        try:
            raw = device.upload(map_blob(planned.slot))
        except Exception as error:
            if is_device_lost(error):
                raise
            failed.append(Settled(planned.slot, Failed(_as_item_error(planned.slot, error))))
            continue
        items.append(StagedItem(planned, raw, time.perf_counter() - start))
    return Staging(tuple(items), tuple(failed))


def map_blob(slot: Slot) -> Tensor:
    """The slot's blob as a host tensor without a copy: uint8 [H, W, 3] or [F, H, W, 3], float32 [samples].

    The mapping is private, and lives as long as the tensor, also after the file is removed.

    Raises:
        BlobMissing: the file is gone, or is not of the size that its shape says.
    """
    shape, dtype = tensor_form(slot.raw)
    try:
        with slot.path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            if size != torch.Size(shape).numel() * dtype.itemsize:
                raise BlobMissing(f"blob {slot.raw.blob.name} has {size} bytes, not those of {shape}")
            mapping = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
    except OSError as error:
        raise BlobMissing(f"blob {slot.raw.blob.name}: {error.strerror}") from error
    return torch.frombuffer(mapping, dtype=dtype).view(shape)


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
    _log.error("staging of slot %s raised", slot.id, exc_info=error)
    return EncodeFailed(f"staging failed: {type(error).__name__}")
