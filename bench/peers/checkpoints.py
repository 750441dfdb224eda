"""Checkpoints of random weights, in the published format that all sides read: one folder for all of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from transformers import CLIPConfig, CLIPModel, Dinov2Config, Dinov2Model

_MEAN_STD = {
    "dinov2": ([0.485, 0.456, 0.406], [0.229, 0.224, 0.225]),
    "clip": ([0.48145466, 0.4578275, 0.40821073], [0.26862954, 0.26130258, 0.27577711]),
}
_BOS, _EOS = "<|startoftext|>", "<|endoftext|>"
#: A text tower that costs nothing: no text is ever encoded, but servers load one.
_TEXT: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "max_position_embeddings": 77,
}


def make_dinov2(folder: Path) -> None:
    """A checkpoint of DINOv2-small's shape: 22 M parameters, 257 rows of 384 values an image."""
    torch.manual_seed(1)
    config = Dinov2Config(
        hidden_size=384, num_hidden_layers=12, num_attention_heads=6, image_size=518, patch_size=14
    )
    Dinov2Model(config).save_pretrained(folder)
    _write_processor(folder, "dinov2", "BitImageProcessor", shortest_edge=256)


def make_clip(folder: Path) -> None:
    """A checkpoint with the vision tower of CLIP ViT-B/32: 88 M parameters, 50 rows of 768 values."""
    torch.manual_seed(1)
    words = _vocabulary()
    text = {**_TEXT, "vocab_size": len(words), "bos_token_id": words[_BOS], "eos_token_id": words[_EOS]}
    CLIPModel(CLIPConfig(text_config=text)).save_pretrained(folder)
    _write_processor(folder, "clip", "CLIPImageProcessor", shortest_edge=224, processor_class="CLIPProcessor")
    _write(folder / "vocab.json", words)
    (folder / "merges.txt").write_text("#version: 0.2\n", encoding="utf-8")
    tokens = {"bos_token": _BOS, "eos_token": _EOS, "unk_token": _EOS, "pad_token": _EOS}
    _write(folder / "tokenizer_config.json", {"tokenizer_class": "CLIPTokenizer", **tokens})


def _vocabulary() -> dict[str, int]:
    """A byte-level vocabulary without merges: printable characters, alone and at the end of a word."""
    characters = [chr(number) for number in range(33, 127)]
    words = [*characters, *(f"{one}</w>" for one in characters), _BOS, _EOS]
    return {word: number for number, word in enumerate(words)}


def _write_processor(folder: Path, family: str, kind: str, *, shortest_edge: int, **extra: str) -> None:
    mean, std = _MEAN_STD[family]
    processor = {
        "image_processor_type": kind,
        "do_convert_rgb": True,
        "do_resize": True,
        "size": {"shortest_edge": shortest_edge},
        "resample": 3,
        "do_center_crop": True,
        "crop_size": {"height": 224, "width": 224},
        "do_rescale": True,
        "rescale_factor": 1 / 255,
        "do_normalize": True,
        "image_mean": mean,
        "image_std": std,
    }
    _write(folder / "preprocessor_config.json", processor | extra)


def _write(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content), encoding="utf-8")
