"""Makes small random Qwen2.5-VL and Qwen3-VL checkpoints with transformers' classes and a byte tokenizer."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from torch import nn
from transformers import (
    PreTrainedTokenizerFast,
    Qwen2_5_VLConfig,
    Qwen2_5_VLForConditionalGeneration,
    Qwen2VLImageProcessorPil,
    Qwen3VLConfig,
    Qwen3VLForConditionalGeneration,
)

SPECIAL = ("<|image_pad|>", "<|video_pad|>", "<|vision_start|>", "<|vision_end|>", "<|im_end|>")
IMAGE, VIDEO, BEGIN, END, STOP = range(256, 256 + len(SPECIAL))
VOCABULARY = 384

_TEXT: dict[str, Any] = {
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": VOCABULARY,
    "bos_token_id": None,
    "eos_token_id": STOP,
    "pad_token_id": STOP,
    "tie_word_embeddings": False,
}
_VISION: dict[str, Any] = {"hidden_size": 64, "intermediate_size": 96, "num_heads": 4, "out_hidden_size": 128}
_TOKENS: dict[str, Any] = {
    "image_token_id": IMAGE,
    "video_token_id": VIDEO,
    "vision_start_token_id": BEGIN,
    "vision_end_token_id": END,
}


@dataclass(frozen=True)
class Sizes:
    """Fields of the text and the vision config that replace those of the small checkpoints."""

    text: dict[str, Any]
    vision: dict[str, Any]


def make_qwen2_5_vl(
    folder: Path, *, seed: int = 3, sizes: Sizes | None = None, processor: dict[str, Any] | None = None
) -> None:
    """Four vision blocks, two of them windowed, and four language layers, unless ``sizes`` says otherwise."""
    text = _TEXT | {"rope_scaling": {"type": "mrope", "mrope_section": [4, 6, 6]}}
    vision = _VISION | {"depth": 4, "window_size": 112, "fullatt_block_indexes": [1, 3]}
    if sizes is not None:
        text, vision = text | sizes.text, vision | sizes.vision
    config = Qwen2_5_VLConfig(text_config=text, vision_config=vision, **_TOKENS)
    _save(
        Qwen2_5_VLForConditionalGeneration(config),
        Qwen2VLImageProcessorPil(**(processor or {})),
        folder,
        seed,
    )


def make_qwen3_vl(folder: Path, *, seed: int = 1) -> None:
    """Four vision blocks, two of which feed the first layers of the language model (deepstack)."""
    rope = {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [6, 5, 5], "mrope_interleaved": True}
    text = _TEXT | {"head_dim": 32, "rope_parameters": rope}
    vision = _VISION | {"depth": 4, "num_position_embeddings": 144, "deepstack_visual_indexes": [0, 2]}
    config = Qwen3VLConfig(text_config=text, vision_config=vision, **_TOKENS)
    pixels = {"shortest_edge": 1 << 16, "longest_edge": 1 << 24}
    half = [0.5, 0.5, 0.5]
    processor = Qwen2VLImageProcessorPil(patch_size=16, size=pixels, image_mean=half, image_std=half)
    _save(Qwen3VLForConditionalGeneration(config), processor, folder, seed)


def _save(model: Any, processor: Any, folder: Path, seed: int) -> None:
    """Save with weights so large that each token depends on all before: a wrong row or position shows."""
    generator = torch.Generator().manual_seed(seed)
    for name, weight in model.named_parameters():
        if name.endswith(("q_norm.weight", "k_norm.weight")):
            nn.init.constant_(weight, 2.0)
        elif weight.dim() > 1:
            gain = 3.0 if ".layers." in name else 1.0
            nn.init.normal_(weight, std=gain * weight[0].numel() ** -0.5, generator=generator)
    model.eval().save_pretrained(folder)
    processor.save_pretrained(folder)
    written = json.loads((folder / "preprocessor_config.json").read_text("utf-8"))
    # Published checkpoints have this file. Here frames get the size limits of single images.
    (folder / "video_preprocessor_config.json").write_text(json.dumps(written), "utf-8")
    _tokenizer().save_pretrained(folder)


def _tokenizer() -> PreTrainedTokenizerFast:
    """A tokenizer with one token per byte, plus the special tokens."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {letter: number for number, letter in enumerate(alphabet)}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(list(SPECIAL))
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=SPECIAL[-1])
