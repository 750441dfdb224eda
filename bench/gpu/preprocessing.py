"""Preprocessing of large images: the same code on the device and on the CPU, and Pillow for comparison."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from PIL import Image
from torch import Tensor

from bench.gpu import building as sizes
from bench.gpu.building import Place, random_dinov2, random_qwen2_5_vl
from bench.gpu.target import CpuMeter, Target
from bench.gpu.towers import image, random_raw
from epd.contracts.media import ItemOptions, RawImage
from gpu_worker.encoders.base import Encoder
from gpu_worker.engine.cuda_streams import open_device

#: Name to (height, width) of an image.
IMAGES = {"1080p": (1080, 1920), "4K": (2160, 3840)}
_TINY = {"tiny": (108, 192)}
FAMILIES = ("dinov2", "qwen2_5_vl")


@dataclass(frozen=True, kw_only=True, slots=True)
class PreprocessFigures:
    """One image, from raw pixels to the tower's inputs.

    ``cpu_ms`` is the same code on the CPU, with ``cpu_threads`` threads. ``upload_ms`` is the upload to the
    device through pinned memory. ``pillow_resize_ms`` is only Pillow's resize to the same size, on one
    thread. ``speed_up`` is the CPU's time over the device's, upload included. ``equal_share`` is the share of
    values that are equal on both.
    """

    family: str
    image: str
    device_ms: float
    upload_ms: float
    cpu_ms: float
    cpu_threads: int
    pillow_resize_ms: float
    speed_up: float
    equal_share: float


def images(target: Target) -> dict[str, tuple[int, int]]:
    """The measured sizes, by name."""
    return _TINY if target.self_test else IMAGES


@torch.inference_mode()
def measure_preprocessing(family: str, size: str, target: Target) -> PreprocessFigures:
    """Measure one family at one size."""
    item = image(*images(target)[size])
    raw, cpu_meter = random_raw(item, seed=1), CpuMeter()
    here = thin_encoder(family, Place(torch.device("cpu"), target.dtype))
    there = thin_encoder(family, Place(target.device, target.dtype))
    on_device = raw.to(target.device)
    device = target.meter.seconds(lambda: preprocessed(there, on_device, item))
    upload = _upload_seconds(raw, target)
    cpu = cpu_meter.seconds(lambda: preprocessed(here, raw, item))
    return PreprocessFigures(
        family=family,
        image=size,
        device_ms=device * 1e3,
        upload_ms=upload * 1e3,
        cpu_ms=cpu * 1e3,
        cpu_threads=torch.get_num_threads(),
        pillow_resize_ms=cpu_meter.seconds(lambda: _resized_by_pillow(here, raw, item)) * 1e3,
        speed_up=cpu / (device + upload),
        equal_share=equal_share(preprocessed(there, on_device, item), preprocessed(here, raw, item)),
    )


def thin_encoder(family: str, place: Place) -> Encoder:
    """An encoder whose tower has one block, since preprocessing does not use it."""
    if family == "dinov2":
        return random_dinov2(family, replace(sizes.DINOV2_SMALL, layers=1), place)
    return random_qwen2_5_vl(family, replace(sizes.QWEN2_5_VL_3B, layers=1, full=frozenset()), place)


def preprocessed(encoder: Encoder, raw: Tensor, item: RawImage) -> Tensor:
    """The tower's pixels of one image."""
    inputs = encoder.preprocess([raw], [encoder.plan(item, ItemOptions())])
    return inputs.tensors["images" if "images" in inputs.tensors else "patches"]


def equal_share(some: Tensor, others: Tensor) -> float:
    """The share of values that are equal."""
    return float((some.cpu() == others.cpu()).double().mean())


def _upload_seconds(raw: Tensor, target: Target) -> float:
    """Seconds of the worker's own upload: pageable memory to pinned memory to the device."""
    device = open_device(str(target.device))

    def upload() -> None:
        device.await_uploads([device.upload(raw)])
        target.meter.wait()

    return CpuMeter().seconds(upload)


def _resized_by_pillow(encoder: Encoder, raw: Tensor, item: RawImage) -> Image.Image:
    """Resize to the plan's size. For DINOv2 the image is larger than its crop, by its shorter side."""
    height, width = encoder.plan(item, ItemOptions()).target or (item.height, item.width)
    if encoder.card.family == "dinov2":
        height, width = 256, 256 * item.width // item.height
    return Image.fromarray(raw.numpy()).resize((width, height), Image.Resampling.BICUBIC)
