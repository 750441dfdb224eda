"""A sequence between Prefill and Decode: its first token, its KV cache, and the file for the cache."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import Cache, DynamicCache

from epd.contracts.embedding import Metadata
from epd.contracts.handoff import Span

Tensors = dict[str, Tensor]

#: A piece of a prompt: text, or the metadata of a medium.
Part = str | Metadata


@dataclass(frozen=True, kw_only=True)
class Prefilled:
    """A sequence after Prefill, from which Decode continues.

    ``cache`` has keys and values by layer. ``prompt_tokens`` is the length of the prompt, and ``runs`` are
    the placeholders of each medium in it. M-RoPE adds ``delta`` to the index of a token to get its position.
    """

    token: int
    cache: Tensors
    prompt_tokens: int
    runs: tuple[tuple[Span, ...], ...] = ()
    delta: int = 0


class LanguageModel(Protocol):
    """The language model of a checkpoint, without its encoder."""

    def prefill(self, parts: Sequence[Part], rows: Sequence[Tensor]) -> Prefilled:
        """Prefill. ``rows`` are epd's embeddings [tokens, hidden], one for each medium in ``parts``."""
        ...

    def decode(self, token: int, cache: Tensors, *, delta: int, limit: int) -> list[int]:
        """Decode greedily: ``token`` and what follows, up to an end token or ``limit`` tokens."""
        ...

    def text(self, tokens: list[int]) -> str:
        """The text of the tokens."""
        ...


def cache_tensors(cache: Cache, prefix: str = "") -> Tensors:
    """Keys and values by layer, [1, heads, length, head width] each."""
    tensors, layers = {}, list[Any](cache.layers)
    for number, layer in enumerate(layers):
        tensors[f"{prefix}{number}.key"] = layer.keys.contiguous()
        tensors[f"{prefix}{number}.value"] = layer.values.contiguous()
    return tensors


def cache_of(tensors: Tensors, prefix: str = "") -> DynamicCache:
    """The cache from the tensors that ``cache_tensors`` returned."""
    layers = sum(name.startswith(prefix) and name.endswith(".key") for name in tensors)
    return DynamicCache([(tensors[f"{prefix}{n}.key"], tensors[f"{prefix}{n}.value"]) for n in range(layers)])


def save_caches(path: Path, caches: Sequence[Tensors]) -> None:
    """Write the caches of a request's sequences to one file, atomically."""
    aside = path.with_suffix(".partial")
    save_file({f"{n}/{name}": t for n, cache in enumerate(caches) for name, t in cache.items()}, aside)
    aside.rename(path)


def take_caches(path: Path) -> list[Tensors]:
    """Read the file that ``save_caches`` wrote, and remove it."""
    caches: dict[str, Tensors] = {}
    for name, tensor in load_file(path).items():
        number, _, rest = name.partition("/")
        caches.setdefault(number, {})[rest] = tensor
    path.unlink()
    return [caches[str(number)] for number in range(len(caches))]
