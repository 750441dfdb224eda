"""A sequence between Prefill and Decode: its first token and its KV cache, and the file that carries it."""

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

#: A piece of a prompt: text, or a medium by its metadata.
Part = str | Metadata


@dataclass(frozen=True, kw_only=True)
class Begun:
    """A sequence after Prefill, which is where Decode goes on.

    ``cache`` is keys and values by layer. ``prompt_tokens`` is the prompt's length, and ``runs`` are where
    each medium stands in it. ``delta`` is what M-RoPE adds to a token's place to get its position.
    """

    token: int
    cache: Tensors
    prompt_tokens: int
    runs: tuple[tuple[Span, ...], ...] = ()
    delta: int = 0


class Language(Protocol):
    """The language model of a checkpoint, without its encoder."""

    def begin(self, parts: Sequence[Part], rows: Sequence[Tensor]) -> Begun:
        """Prefill: ``rows`` are epd's embeddings [tokens, hidden], one for each medium in ``parts``."""
        ...

    def go_on(self, token: int, cache: Tensors, *, delta: int, limit: int) -> list[int]:
        """Decode: greedy tokens after ``token``, it included, up to an end token or ``limit`` of them."""
        ...

    def text(self, tokens: list[int]) -> str:
        """What the tokens say."""
        ...


def cache_tensors(cache: Cache, prefix: str = "") -> Tensors:
    """Keys and values by layer, [1, heads, length, head width] each."""
    tensors, layers = {}, list[Any](cache.layers)
    for number, layer in enumerate(layers):
        tensors[f"{prefix}{number}.key"] = layer.keys.contiguous()
        tensors[f"{prefix}{number}.value"] = layer.values.contiguous()
    return tensors


def cache_of(tensors: Tensors, prefix: str = "") -> DynamicCache:
    """The cache that ``cache_tensors`` took apart."""
    layers = sum(name.startswith(prefix) and name.endswith(".key") for name in tensors)
    return DynamicCache([(tensors[f"{prefix}{n}.key"], tensors[f"{prefix}{n}.value"]) for n in range(layers)])


def save_caches(path: Path, caches: Sequence[Tensors]) -> None:
    """Write the caches of a request's sequences; the file is there wholly or not at all."""
    aside = path.with_suffix(".partial")
    save_file({f"{n}/{name}": t for n, cache in enumerate(caches) for name, t in cache.items()}, aside)
    aside.rename(path)


def take_caches(path: Path) -> list[Tensors]:
    """Read what ``save_caches`` wrote, and remove the file."""
    caches: dict[str, Tensors] = {}
    for name, tensor in load_file(path).items():
        number, _, rest = name.partition("/")
        caches.setdefault(number, {})[rest] = tensor
    path.unlink()
    return [caches[str(number)] for number in range(len(caches))]
