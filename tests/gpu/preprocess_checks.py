"""Preprocessing on a device gives what the processor gives; ``tests/unit`` runs it on the processor twice."""

from __future__ import annotations

from pathlib import Path

import torch

from epd.contracts.media import ItemOptions, RawMedia
from gpu_worker.preprocess.resample import Filter
from gpu_worker.preprocess.resize import Window, resize, tensor_pass
from tests.gpu.batches import random_media
from tests.gpu.site import Site, twin_site
from tests.unit.encoders.tiny_checkpoints import random_image, raw_audio, raw_frames, raw_image

#: (height, width) of images, and what they are resized to.
RESIZES = [((30, 40), (224, 224)), ((1080, 1920), (256, 455)), ((301, 200), (56, 84)), ((7, 999), (64, 33))]

IMAGES: list[RawMedia] = [raw_image(30, 40), raw_image(301, 200), raw_image(1080, 1920)]
AUDIOS: list[RawMedia] = [raw_audio(16_000), raw_audio(500_001), raw_audio(4_321)]
#: Most that values may differ: the log-mel's own bar, and angles of up to 137 radians in float32.
BARS = {"mel": 1e-4, "cos": 2e-5, "sin": 2e-5}
VIDEO: list[RawMedia] = [raw_frames(5, 120, 90)]


def check_resize(site: Site) -> None:
    """By matrix products on the device every level of every pixel is Pillow's, with a window too."""
    for size, resized in RESIZES:
        image = random_image(*size, frames=2, seed=size[0])
        window = Window(top=3, left=5, height=resized[0] - 7, width=resized[1] - 9)
        for filter_ in Filter:
            for part in (None, window):
                expected = resize(image, resized, filter_=filter_, window=part)
                there = image.to(site.device)
                given = resize(there, resized, filter_=filter_, window=part, way=tensor_pass)
                assert torch.equal(given.cpu(), expected), (size, filter_, part)


def check_preprocess(site: Site, family: str, folder: Path) -> None:
    """In float32: places and offsets are equal, pixels up to rounding, the rest within its bar."""
    here = twin_site().encoder(family, folder, dtype="float32")
    there = site.encoder(family, folder, dtype="float32")
    batches = [AUDIOS] if here.card.audio is not None else [IMAGES, VIDEO]
    for raws in batches:
        tensors = [random_media(raw, index) for index, raw in enumerate(raws)]
        plans = [here.plan(raw, ItemOptions()) for raw in raws]
        assert plans == [there.plan(raw, ItemOptions()) for raw in raws]
        expected = here.preprocess(tensors, plans)
        given = there.preprocess([tensor.to(site.device) for tensor in tensors], plans)
        assert given.layout == expected.layout
        for name, tensor in expected.tensors.items():
            bar = BARS.get(name, 2e-6) if tensor.is_floating_point() else 0
            torch.testing.assert_close(given.tensors[name].cpu(), tensor, rtol=0, atol=bar)
