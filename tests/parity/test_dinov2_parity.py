"""DINOv2-small with real weights, and small random ones, against BitImageProcessor and Dinov2Model."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor
from transformers import Dinov2Config, Dinov2ForImageClassification, Dinov2Model
from transformers.models.bit.image_processing_pil_bit import BitImageProcessorPil

from epd.contracts.media import RawMedia
from gpu_worker.encoders.base import Encoder
from tests.unit.tiny_checkpoints import NO_OPTIONS, random_picture, raw_frames, raw_image

MEDIA = Path(__file__).parents[2] / "examples" / "media"
PHOTOS = ("astronaut.jpg", "cat.jpg", "coffee.jpg", "rocket.jpg")
IMAGENET = {"image_mean": [0.485, 0.456, 0.406], "image_std": [0.229, 0.224, 0.225]}
SIZES = [(1, 1), (224, 224), (256, 256), (333, 500), (500, 333), (8, 1600), (1600, 8), (3, 240), (1080, 1920)]


@pytest.fixture(scope="module")
def processor() -> Any:
    crop = {"height": 224, "width": 224}
    return BitImageProcessorPil(size={"shortest_edge": 256}, crop_size=crop, **IMAGENET)


@pytest.fixture(scope="module")
def model(real_folders: dict[str, Path]) -> Any:
    return Dinov2Model.from_pretrained(real_folders["dinov2-small"], dtype=torch.float32).eval()


@pytest.fixture(scope="module")
def ours(real_folders: dict[str, Path], load: Callable[..., Encoder]) -> Encoder:
    return load("dinov2", real_folders["dinov2-small"])


def photo(name: str) -> Tensor:
    return torch.from_numpy(np.array(Image.open(MEDIA / name).convert("RGB")))


def image_item(picture: Tensor) -> tuple[RawMedia, Tensor]:
    return raw_image(picture.shape[0], picture.shape[1]), picture


def reference_rows(processor: Any, model: Any, picture: Tensor) -> Tensor:
    values = processor(picture.numpy(), input_data_format="channels_last", return_tensors="pt").pixel_values
    with torch.inference_mode():
        rows: Tensor = model(values).last_hidden_state
    return rows[0]


@pytest.mark.parametrize(("height", "width"), SIZES)
def test_pixels_are_equal(ours: Encoder, processor: Any, height: int, width: int) -> None:
    picture = random_picture(height, width, seed=height)
    plan = ours.plan(raw_image(height, width), NO_OPTIONS)
    got = ours.preprocess([picture], [plan]).tensors["pictures"]
    wanted = processor(picture.numpy(), input_data_format="channels_last", return_tensors="pt").pixel_values
    torch.testing.assert_close(got, wanted, atol=1e-5, rtol=0)


@pytest.mark.parametrize("name", PHOTOS)
def test_photos_are_equal(
    ours: Encoder, processor: Any, model: Any, encode: Any, relative: Any, name: str
) -> None:
    picture = photo(name)
    got = encode(ours, [image_item(picture)])[0]
    assert got.shape == (257, 384)
    assert relative(got, reference_rows(processor, model, picture)) <= 1e-4


def test_a_video_is_its_frames(ours: Encoder, processor: Any, model: Any, encode: Any, relative: Any) -> None:
    frames = torch.stack([photo("cat.jpg")[:240, :300], photo("coffee.jpg")[:240, :300]])
    got = encode(ours, [(raw_frames(2, 240, 300), frames)])[0]
    wanted = torch.cat([reference_rows(processor, model, frame) for frame in frames])
    assert relative(got, wanted) <= 1e-4


def test_packed_equals_single(ours: Encoder, encode: Any) -> None:
    items = [image_item(photo(name)) for name in PHOTOS]
    for packed, item in zip(encode(ours, items), items, strict=True):
        single = encode(ours, [item])[0]
        torch.testing.assert_close(packed, single, atol=1e-5 * float(single.abs().max()), rtol=0)


def test_bfloat16_points_the_same_way(
    real_folders: dict[str, Path], load: Callable[..., Encoder], ours: Encoder, encode: Any, alike: Any
) -> None:
    half = load("dinov2", real_folders["dinov2-small"], "bfloat16")
    for name in PHOTOS:
        item = image_item(photo(name))
        assert alike(encode(half, [item])[0], encode(ours, [item])[0]) >= 0.999


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"use_swiglu_ffn": True},
        {"qkv_bias": False, "layer_norm_eps": 1e-5},
        {"image_size": 224, "patch_size": 28},
    ],
    ids=["plain", "gated", "no bias", "large patches"],
)
def test_other_configurations_are_equal(
    tmp_path: Path,
    load: Callable[..., Encoder],
    encode: Any,
    relative: Any,
    processor: Any,
    changes: dict[str, Any],
) -> None:
    torch.manual_seed(1)
    config = Dinov2Config(
        hidden_size=48,
        num_hidden_layers=3,
        num_attention_heads=4,
        image_size=518,
        patch_size=14,
        layerscale_value=0.7,
    )
    config.update(changes)
    model = Dinov2Model(config).eval()
    model.save_pretrained(tmp_path)
    picture = random_picture(200, 300)
    got = encode(load("dinov2", tmp_path), [image_item(picture)])[0]
    assert relative(got, reference_rows(processor, model, picture)) <= 1e-4


def test_a_classifiers_backbone_is_found(
    tmp_path: Path, load: Callable[..., Encoder], encode: Any, relative: Any, processor: Any
) -> None:
    config = Dinov2Config(
        hidden_size=48, num_hidden_layers=2, num_attention_heads=4, image_size=518, patch_size=14
    )
    model = Dinov2ForImageClassification(config).eval()
    model.save_pretrained(tmp_path)
    picture = random_picture(100, 100)
    got = encode(load("dinov2", tmp_path), [image_item(picture)])[0]
    assert relative(got, reference_rows(processor, model.dinov2, picture)) <= 1e-4


def test_the_preprocessor_file_is_obeyed(
    tmp_path: Path, load: Callable[..., Encoder], encode: Any, relative: Any
) -> None:
    config = Dinov2Config(
        hidden_size=48, num_hidden_layers=2, num_attention_heads=4, image_size=518, patch_size=14
    )
    model = Dinov2Model(config).eval()
    model.save_pretrained(tmp_path)
    other = BitImageProcessorPil(
        size={"shortest_edge": 100},
        crop_size={"height": 84, "width": 56},
        resample=2,
        image_std=[0.5, 0.4, 0.3],
    )
    other.save_pretrained(tmp_path)
    picture = random_picture(120, 90)
    encoder = load("dinov2", tmp_path)
    assert encoder.plan(raw_image(120, 90), NO_OPTIONS).facts.grid_thw == (1, 6, 4)
    assert relative(encode(encoder, [image_item(picture)])[0], reference_rows(other, model, picture)) <= 1e-4
