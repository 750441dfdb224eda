"""CLIP and SigLIP: rows of an image, defaults of short files, and which checkpoints they refuse."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from epd.contracts.errors import SettingsError
from gpu_worker.encoders.base import Encoder
from gpu_worker.preprocess.fit import StretchRule, stretch_rule
from gpu_worker.preprocess.resample import Filter
from gpu_worker.preprocess.resize import Window
from tests.unit.encoders import tiny_checkpoints as tiny

FAMILIES = ("clip", "siglip")
PREFIX = {"clip": 1, "siglip": 0}
DEFAULT = StretchRule(size=(56, 56))


def changed(
    folder: Path, family: str, config: dict[str, Any] | None = None, processor: dict[str, Any] | None = None
) -> Encoder:
    """The family's tiny checkpoint with other keys in ``vision_config``, or with a preprocessor file."""
    path = tiny.tiny_folder(family, folder)
    vision = tiny.TINY[family][0]["vision_config"] | (config or {})
    (path / "config.json").write_text(json.dumps({"vision_config": vision}))
    if processor is not None:
        (path / "preprocessor_config.json").write_text(json.dumps(processor))
    return tiny.encoder_at(family, path)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("size", [(1, 1), (333, 500), (8, 2000)])
def test_each_frame_gives_the_same_rows(tmp_path: Path, family: str, size: tuple[int, int]) -> None:
    encoder, prefix = tiny.tiny_encoder(family, tmp_path), PREFIX[family]
    image = encoder.plan(tiny.raw_image(*size), tiny.NO_OPTIONS)
    assert (image.tokens, image.facts.grid_thw, image.facts.prefix_tokens) == (16 + prefix, (1, 4, 4), prefix)
    video = encoder.plan(tiny.raw_frames(5, *size, fps=4.0), tiny.NO_OPTIONS)
    assert (video.tokens, video.facts.grid_thw) == (5 * (16 + prefix), (5, 4, 4))
    assert video.facts.video_timestamps == (0.0, 0.25, 0.5, 0.75, 1.0)
    assert image.bucket == video.bucket == (56, 56)


def test_pixels_past_the_last_patch_are_left_out(tmp_path: Path) -> None:
    """SigLIP so400m has 384 pixels in patches of 14: 27 a side, and 6 pixels too many."""
    encoder = changed(tmp_path, "siglip", {"image_size": 60})
    plan = encoder.plan(tiny.raw_image(30, 30), tiny.NO_OPTIONS)
    assert (plan.tokens, plan.target) == (16, (60, 60))
    image = tiny.random_image(30, 30)
    assert encoder.forward(encoder.preprocess([image], [plan])).shape == (16, 32)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_tower_saved_alone_is_the_same(tmp_path: Path, family: str) -> None:
    whole = tiny.tiny_encoder(family, tmp_path)
    config, state = tiny.TINY[family]
    alone = {name.removeprefix("vision_model."): tensor for name, tensor in state().items()}
    path = tiny.write_checkpoint(tmp_path / "alone", config["vision_config"], alone)
    plan, image = whole.plan(tiny.raw_image(40, 50), tiny.NO_OPTIONS), tiny.random_image(40, 50)
    rows = [e.forward(e.preprocess([image], [plan])) for e in (whole, tiny.encoder_at(family, path))]
    assert torch.equal(rows[0], rows[1])


@pytest.mark.parametrize("family", FAMILIES)
def test_only_the_towers_tensors_are_wanted(tmp_path: Path, family: str) -> None:
    """A whole model has a text tower, and older ones a buffer of position numbers and a pooled head."""
    head = {
        "clip": ("post_layernorm.weight", "post_layernorm.bias"),
        "siglip": ("head.probe", "head.attention.in_proj_weight", "head.mlp.fc2.bias"),
    }[family]
    path = tiny.tiny_folder(family, tmp_path)
    others = {f"vision_model.{name}": torch.zeros(2) for name in ("embeddings.position_ids", *head)}
    save_file(
        tiny.TINY[family][1]() | others | {"text_model.x": torch.zeros(1), "logit_scale": torch.zeros(1)},
        path / "model.safetensors",
    )
    assert tiny.encoder_at(family, path).card.parameters == sum(
        tensor.numel() for tensor in tiny.TINY[family][1]().values()
    )


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("hidden_act", "relu"),
        ("num_channels", 1),
        ("image_size", None),
        ("patch_size", [14, 14]),
        ("num_attention_heads", 5),
    ],
)
def test_another_tower_is_refused(tmp_path: Path, family: str, key: str, value: object) -> None:
    with pytest.raises(SettingsError, match=key):
        changed(tmp_path, family, {key: value})


def test_siglip_of_any_size_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="num_patches"):
        changed(tmp_path, "siglip", {"num_patches": 256})


@pytest.mark.parametrize(
    ("family", "processor", "named"),
    [
        ("clip", {"size": 56, "crop_size": 42}, "crop_size"),
        ("clip", {"size": {"height": 56, "width": 56}, "crop_size": 56}, "shortest_edge"),
        ("clip", {"size": 56, "crop_size": 56, "do_center_crop": False}, "do_center_crop"),
        ("clip", {"size": 56, "crop_size": 56, "do_normalize": False}, "do_normalize"),
        ("siglip", {"size": {"height": 56, "width": 42}}, "size"),
        ("siglip", {"size": {"shortest_edge": 56}}, "size"),
        ("siglip", {"size": 56, "do_center_crop": True}, "do_center_crop"),
        ("siglip", {"size": 56, "do_resize": False}, "do_resize"),
        ("siglip", {"size": 56, "resample": 1}, "resample"),
        ("siglip", {"size": 56, "do_rescale": False}, "do_rescale"),
    ],
)
def test_another_preprocessing_is_refused(
    tmp_path: Path, family: str, processor: dict[str, Any], named: str
) -> None:
    with pytest.raises(SettingsError, match=named):
        changed(tmp_path, family, processor=processor)


def test_a_stretch_rule_is_read() -> None:
    file = {"size": {"height": 40, "width": 28}, "resample": 2, "do_center_crop": None}
    rule = stretch_rule(file, DEFAULT)
    assert rule == StretchRule(size=(40, 28), filter_=Filter.BILINEAR)
    assert rule.placed(1000, 3) == ((40, 28), Window(top=0, left=0, height=40, width=28))
    assert stretch_rule({}, DEFAULT) == DEFAULT
    assert stretch_rule({"size": 30}, DEFAULT).size == (30, 30)
