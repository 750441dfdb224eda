"""Reading checkpoints: prefixes, shards, dtype, digests, and a clear error for every wrong folder."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from epd.config import EncoderConfig
from epd.contracts.errors import SettingsError
from gpu_worker.encoders.base import Encoder
from gpu_worker.encoders.checkpoint import Checkpoint
from gpu_worker.encoders.registry import FAMILIES, load_encoder
from tests.unit.encoders import tiny_checkpoints as tiny


def load(family: str, folder: Path, **settings: str) -> Encoder:
    config = {"family": family, "path": folder, "dtype": "float32", "device": "cpu"} | settings
    return load_encoder("e", EncoderConfig.model_validate(config))


@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_every_family_loads_and_describes_itself(family: str, tmp_path: Path) -> None:
    card = tiny.tiny_encoder(family, tmp_path).card
    assert (card.name, card.family, card.dtype, card.device) == (f"tiny-{family}", family, "float32", "cpu")
    state = tiny.TINY[family][1]()
    assert card.parameters == sum(tensor.numel() for tensor in state.values())
    assert card.modalities


def test_an_unknown_family_is_named(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"encoders\.e\.family: 'clap'.*whisper"):
        load("clap", tmp_path)


def test_a_folder_without_config_is_named(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"encoders\.e\.path: no config\.json"):
        load("whisper", tmp_path)


def test_a_hub_id_that_is_not_cached_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    config = EncoderConfig(family="whisper", hub="nobody/nothing-of-this-name")
    with pytest.raises(SettingsError, match=r"encoders\.e\.hub: .*nobody/nothing-of-this-name"):
        load_encoder("e", config)


@pytest.mark.parametrize("text", ["{", "[]"])
def test_a_broken_config_is_named(tmp_path: Path, text: str) -> None:
    folder = tiny.tiny_folder("whisper", tmp_path)
    (folder / "config.json").write_text(text)
    with pytest.raises(SettingsError, match=r"config\.json: not"):
        load("whisper", folder)


def test_a_missing_number_is_named(tmp_path: Path) -> None:
    config = {key: value for key, value in tiny.WHISPER.items() if key != "d_model"}
    folder = tiny.write_checkpoint(tmp_path, config, tiny.whisper_state())
    with pytest.raises(SettingsError, match="d_model"):
        load("whisper", folder)


def test_an_unsupported_activation_is_named(tmp_path: Path) -> None:
    folder = tiny.write_checkpoint(tmp_path, tiny.DINOV2 | {"hidden_act": "relu"}, tiny.dinov2_state())
    with pytest.raises(SettingsError, match=r"hidden_act is 'relu'"):
        load("dinov2", folder)


def test_a_missing_tensor_is_named(tmp_path: Path) -> None:
    state = tiny.whisper_state()
    del state["model.encoder.layers.1.fc1.bias"]
    folder = tiny.write_checkpoint(tmp_path, tiny.WHISPER, state)
    with pytest.raises(SettingsError, match=r"lacks layers\.1\.fc1\.bias"):
        load("whisper", folder)


def test_an_unexpected_tensor_is_named(tmp_path: Path) -> None:
    state = tiny.whisper_state() | {"model.encoder.extra": torch.zeros(1)}
    folder = tiny.write_checkpoint(tmp_path, tiny.WHISPER, state)
    with pytest.raises(SettingsError, match="unexpected extra"):
        load("whisper", folder)


def test_a_wrong_shape_is_named(tmp_path: Path) -> None:
    state = tiny.whisper_state() | {"model.encoder.layer_norm.weight": torch.zeros(31)}
    folder = tiny.write_checkpoint(tmp_path, tiny.WHISPER, state)
    with pytest.raises(SettingsError, match=r"layer_norm\.weight \(31,\), not \(32,\)"):
        load("whisper", folder)


def test_another_models_weights_are_refused(tmp_path: Path) -> None:
    folder = tiny.write_checkpoint(tmp_path, tiny.WHISPER, tiny.qwen_state())
    with pytest.raises(SettingsError, match="no encoder tensor under"):
        load("whisper", folder)


def test_a_cut_file_is_named(tmp_path: Path) -> None:
    folder = tiny.tiny_folder("whisper", tmp_path)
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-100])
    with pytest.raises(SettingsError, match=r"model\.safetensors: not a safetensors file"):
        load("whisper", folder)


def test_half_precision_on_a_cpu_is_refused(tmp_path: Path) -> None:
    folder = tiny.tiny_folder("whisper", tmp_path)
    with pytest.raises(SettingsError, match="float16"):
        load("whisper", folder, dtype="float16")
    assert load("whisper", folder, dtype="auto").card.dtype in {"float32", "bfloat16"}
    assert load("whisper", folder, dtype="bfloat16").card.dtype == "bfloat16"


def test_other_prefixes_and_other_parts_are_fine(tmp_path: Path) -> None:
    plain = load("whisper", tiny.tiny_folder("whisper", tmp_path))
    state = {name.removeprefix("model."): tensor for name, tensor in tiny.whisper_state().items()}
    folder = tiny.write_checkpoint(tmp_path / "b", tiny.WHISPER, state | {"decoder.x": torch.zeros(3)})
    assert load("whisper", folder).card.parameters == plain.card.parameters


def test_only_the_encoders_shards_are_opened(tmp_path: Path) -> None:
    folder = tmp_path / "sharded"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(tiny.QWEN))
    state = sorted(tiny.qwen_state().items())
    weight_map = {"language.weight": "model-3.safetensors"}
    for number, part in ((1, dict(state[::2])), (2, dict(state[1::2]))):
        save_file(part, folder / f"model-{number}.safetensors")
        weight_map |= dict.fromkeys(part, f"model-{number}.safetensors")
    # The language model's shard is not even a safetensors file.
    (folder / "model-3.safetensors").write_bytes(b"nothing to read here")
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    whole = tiny.tiny_encoder("qwen2_5_vl", tmp_path)
    split = load("qwen2_5_vl", folder)
    plan = whole.plan(tiny.raw_image(60, 90), tiny.NO_OPTIONS)
    image = tiny.random_image(60, 90)
    rows = [e.forward(e.preprocess([image], [plan])) for e in (whole, split)]
    assert torch.equal(rows[0], rows[1])


@pytest.mark.parametrize("name", ["../model.safetensors", "absent.safetensors"])
def test_an_index_stays_in_its_folder(tmp_path: Path, name: str) -> None:
    folder = tiny.tiny_folder("whisper", tmp_path)
    index = {"weight_map": dict.fromkeys(tiny.whisper_state(), name)}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(SettingsError, match="not a file next to it"):
        load("whisper", folder)


def test_the_digest_changes_with_weights_and_configuration(tmp_path: Path) -> None:
    folder = tiny.tiny_folder("dinov2", tmp_path)
    first = load("dinov2", folder).card.weights_digest
    copy = tmp_path / "copy"
    shutil.copytree(folder, copy)
    assert load("dinov2", copy).card.weights_digest == first
    (copy / "preprocessor_config.json").write_text(json.dumps({"image_mean": [0.5, 0.5, 0.5]}))
    other_processor = load("dinov2", copy).card.weights_digest
    state = tiny.dinov2_state()
    state["layernorm.bias"] += 1e-3
    save_file(state, copy / "model.safetensors")
    assert len({first, other_processor, load("dinov2", copy).card.weights_digest}) == 3


def test_a_running_encoder_does_not_see_its_file_change(tmp_path: Path) -> None:
    encoder = tiny.tiny_encoder("dinov2", tmp_path)
    plan, image = encoder.plan(tiny.raw_image(30, 40), tiny.NO_OPTIONS), tiny.random_image(30, 40)
    before = encoder.forward(encoder.preprocess([image], [plan]))
    file = tmp_path / "dinov2" / "model.safetensors"
    file.write_bytes(b"\xff" * file.stat().st_size)
    assert torch.equal(encoder.forward(encoder.preprocess([image], [plan])), before)


def test_the_digest_is_over_what_was_read(tmp_path: Path) -> None:
    checkpoint = Checkpoint(tiny.tiny_folder("whisper", tmp_path))
    files = set(checkpoint.tensor_files.values())
    assert checkpoint.digest(files) == load("whisper", checkpoint.folder).card.weights_digest
    assert checkpoint.digest(files) != checkpoint.digest(())
