"""Self-attention inside the segments of packed rows, or inside each of a stack of equal sequences.

Packed rows are computed in one of two ways, with the same result. On CUDA in half precision the
variable-length flash kernel reads the rows and the offsets of the segments from device memory, so a captured
graph can be replayed with other offsets. Elsewhere, neighbouring segments of equal length are stacked for one
dense call. The activations of the towers are here too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from itertools import groupby
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812 - torch's own habit

from epd.contracts.errors import SettingsError
from gpu_worker.preprocess.tensors import send


@dataclass(frozen=True, kw_only=True, slots=True)
class Segments:
    """How packed rows are cut: ``offsets`` int32 [segments + 1] on the device, ``lengths`` on the host."""

    offsets: Tensor
    lengths: tuple[int, ...]


def offsets_of(lengths: tuple[int, ...], device: torch.device) -> Tensor:
    """Start of each segment and the end of the last: int32 [segments + 1]."""
    sums = torch.tensor((0, *lengths), dtype=torch.int64).cumsum(0)
    return send(sums.to(torch.int32), device)


@lru_cache(maxsize=512)
def _runs(lengths: tuple[int, ...]) -> tuple[tuple[int, int], ...]:
    """(count, length) of each run of equal lengths."""
    return tuple((len(list(run)), length) for length, run in groupby(lengths))


def attend(query: Tensor, key: Tensor, value: Tensor, segments: Segments) -> Tensor:
    """Inside each segment: three times [rows, heads, head_dim] to [rows, heads * head_dim]."""
    if query.is_cuda and query.dtype in (torch.bfloat16, torch.float16):
        return _attend_packed(query, key, value, segments).flatten(1)
    result = torch.empty_like(query)
    start = 0
    for count, length in _runs(segments.lengths):
        stop = start + count * length
        q, k, v = (
            packed[start:stop].view(count, length, *packed.shape[1:]).transpose(1, 2)
            for packed in (query, key, value)
        )
        mixed = F.scaled_dot_product_attention(q, k, v).transpose(1, 2)
        result[start:stop] = mixed.reshape(stop - start, *query.shape[1:])
        start = stop
    return result.flatten(1)


def attend_whole(query: Tensor, key: Tensor, value: Tensor, heads: int) -> Tensor:
    """Inside each whole sequence: three times [sequences, rows, width] to the same shape."""
    q, k, v = (rows.view(*rows.shape[:2], heads, -1).transpose(1, 2) for rows in (query, key, value))
    return F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)


def _attend_packed(query: Tensor, key: Tensor, value: Tensor, segments: Segments) -> Tensor:
    from torch.nn.attention.varlen import varlen_attn  # only where its kernel exists

    longest = max(segments.lengths)
    mixed = varlen_attn(query, key, value, segments.offsets, segments.offsets, longest, longest)
    assert isinstance(mixed, Tensor)  # a tuple only when auxiliary results are asked for
    return mixed


Activation = Callable[[Tensor], Tensor]


def quick_gelu(x: Tensor) -> Tensor:
    """``x * sigmoid(1.702 x)``: OpenAI CLIP's GELU (Hendrycks and Gimpel 2016, section 2)."""
    return x * torch.sigmoid(1.702 * x)


def tanh_gelu(x: Tensor) -> Tensor:
    """GELU by the tanh formula of the same paper."""
    return F.gelu(x, approximate="tanh")


_BY_NAME: Mapping[str, Activation] = {
    "gelu": F.gelu,
    "gelu_pytorch_tanh": tanh_gelu,
    "quick_gelu": quick_gelu,
}


def read_activation(config: Mapping[str, Any], default: str) -> Activation:
    """The function that ``hidden_act`` names. Raises ``SettingsError`` for an unknown one."""
    name = config.get("hidden_act", default)
    if name not in _BY_NAME:
        raise SettingsError(f"checkpoint: hidden_act is {name!r}; supported are {', '.join(_BY_NAME)}")
    return _BY_NAME[name]
