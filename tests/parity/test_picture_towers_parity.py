"""CLIP's and SigLIP's vision towers on small random checkpoints of the real config classes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor
from transformers import (
    CLIPConfig,
    CLIPModel,
    CLIPVisionConfig,
    CLIPVisionModel,
    CLIPVisionModelWithProjection,
    SiglipConfig,
    SiglipModel,
    SiglipVisionConfig,
    SiglipVisionModel,
)
from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil
from transformers.models.siglip.image_processing_pil_siglip import SiglipImageProcessorPil

from gpu_worker.encoders.base import Encoder
from tests.parity.qwen_kit import image_item, make_felt, random_sizes
from tests.unit.tiny_checkpoints import NO_OPTIONS, random_picture, raw_frames, raw_image

SIZES = [(1, 1), (224, 224), (333, 500), (500, 333), (8, 1600), (1600, 8), (3, 240), (225, 226)]
VISION: dict[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "image_size": 224,
    "patch_size": 32,
}
TEXT = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}


class Reference(NamedTuple):
    """transformers' side: a folder of theirs, their vision tower, their processor."""

    family: str
    folder: Path
    tower: Any
    processor: Any


def saved(model: Any, processor: Any, folder: Path) -> None:
    make_felt(model)
    model.eval().save_pretrained(folder)
    processor.save_pretrained(folder)


@pytest.fixture(scope="module", params=["clip", "siglip"])
def reference(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Reference:
    torch.manual_seed(0)
    folder = tmp_path_factory.mktemp(request.param)
    model: Any
    processor: Any
    if request.param == "clip":
        model = CLIPModel(CLIPConfig(text_config=TEXT, vision_config=VISION))
        processor = CLIPImageProcessorPil()
    else:
        model = SiglipModel(SiglipConfig(text_config=TEXT, vision_config=VISION))
        processor = SiglipImageProcessorPil()
    saved(model, processor, folder)
    return Reference(request.param, folder, model.vision_model, processor)


@pytest.fixture(scope="module")
def ours(reference: Reference, load: Callable[..., Encoder]) -> Encoder:
    return load(reference.family, reference.folder)


def pixels(processor: Any, picture: Tensor) -> Tensor:
    values: Tensor = processor(
        picture.numpy(), input_data_format="channels_last", return_tensors="pt"
    ).pixel_values
    return values


def wanted_rows(tower: Any, values: Tensor) -> Tensor:
    with torch.inference_mode():
        rows: Tensor = tower(values).last_hidden_state
    return rows[0]


def test_pixels_are_equal(ours: Encoder, reference: Reference) -> None:
    for height, width in [*SIZES, *(size for size in random_sizes(60) if max(size) <= 1500)]:
        picture = random_picture(height, width, seed=height)
        plan = ours.plan(raw_image(height, width), NO_OPTIONS)
        got = ours.preprocess([picture], [plan]).tensors["pictures"]
        torch.testing.assert_close(got, pixels(reference.processor, picture), atol=1e-5, rtol=0)


def test_rows_are_equal(ours: Encoder, reference: Reference, encode: Any, relative: Any) -> None:
    items = [image_item(*size) for size in SIZES]
    for got, (_, picture) in zip(encode(ours, items), items, strict=True):
        wanted = wanted_rows(reference.tower, pixels(reference.processor, picture))
        assert got.shape[0] == {"clip": 50, "siglip": 49}[reference.family]
        assert relative(got, wanted) <= 1e-4


def test_a_video_is_its_frames(ours: Encoder, reference: Reference, encode: Any, relative: Any) -> None:
    frames = random_picture(90, 160, frames=3)
    got = encode(ours, [(raw_frames(3, 90, 160), frames)])[0]
    each = [wanted_rows(reference.tower, pixels(reference.processor, frame)) for frame in frames]
    assert relative(got, torch.cat(each)) <= 1e-4


def test_packed_equals_single(ours: Encoder, encode: Any) -> None:
    items = [image_item(*size) for size in SIZES]
    for packed, item in zip(encode(ours, items), items, strict=True):
        single = encode(ours, [item])[0]
        torch.testing.assert_close(packed, single, atol=1e-5 * float(single.abs().max()), rtol=0)


def test_bfloat16_points_the_same_way(
    reference: Reference, load: Callable[..., Encoder], ours: Encoder, encode: Any, alike: Any
) -> None:
    half = load(reference.family, reference.folder, "bfloat16")
    items = [image_item(*size) for size in SIZES]
    assert alike(torch.cat(encode(half, items)), torch.cat(encode(ours, items))) >= 0.999


@pytest.mark.parametrize(
    ("family", "make"),
    [
        ("clip", lambda: CLIPVisionModel(CLIPVisionConfig(**VISION, hidden_act="gelu"))),
        ("clip", lambda: CLIPVisionModelWithProjection(CLIPVisionConfig(**VISION))),
        ("siglip", lambda: SiglipVisionModel(SiglipVisionConfig(**VISION, vision_use_head=False))),
        ("siglip", lambda: SiglipVisionModel(SiglipVisionConfig(**VISION | {"patch_size": 30}))),
    ],
    ids=["clip tower with gelu", "clip with projection", "siglip without head", "siglip with a margin"],
)
def test_towers_saved_alone_are_equal(
    tmp_path: Path, load: Callable[..., Encoder], encode: Any, relative: Any, family: str, make: Any
) -> None:
    torch.manual_seed(1)
    model = make()
    processor = CLIPImageProcessorPil() if family == "clip" else SiglipImageProcessorPil()
    saved(model, processor, tmp_path)
    item = image_item(200, 300)
    wanted = wanted_rows(getattr(model, "vision_model", model), pixels(processor, item[1]))
    assert relative(encode(load(family, tmp_path), [item])[0], wanted) <= 1e-4


def test_the_preprocessor_file_is_obeyed(
    tmp_path: Path, load: Callable[..., Encoder], encode: Any, relative: Any
) -> None:
    model = CLIPVisionModel(CLIPVisionConfig(**VISION | {"image_size": 96})).eval()
    crop = {"height": 96, "width": 96}
    processor = CLIPImageProcessorPil(
        size={"shortest_edge": 120}, crop_size=crop, resample=2, image_std=[0.5, 0.4, 0.3]
    )
    saved(model, processor, tmp_path)
    item = image_item(120, 190)
    wanted = wanted_rows(model, pixels(processor, item[1]))
    assert relative(encode(load("clip", tmp_path), [item])[0], wanted) <= 1e-4
