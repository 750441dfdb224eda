"""CTranslate2's whisper variables under the names and shapes of transformers' Whisper.

CTranslate2 fuses the projections of self-attention into one matrix [3 * d, d] (query, key, value) and those
of cross-attention into [2 * d, d] (key, value). Whisper's key projection has no bias; CTranslate2 stores
zeros.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from demo.weights.ct2 import Array

Pairs = Iterator[tuple[str, Array]]


def transformers_state(variables: dict[str, Array]) -> dict[str, Array]:
    """The float32 state of ``WhisperForConditionalGeneration``; ``proj_out`` is tied to the embedding."""
    pairs = [*_encoder(variables), *_decoder(variables)]
    return {name: np.ascontiguousarray(value, dtype=np.float32) for name, value in pairs}


def count_layers(variables: dict[str, Array], side: str) -> int:
    """How many layers ``side`` (``encoder`` or ``decoder``) has."""
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
