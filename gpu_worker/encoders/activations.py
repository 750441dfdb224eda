"""The activation functions that checkpoints name, by the names that their ``hidden_act`` uses."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812 - torch's own habit

from epd.contracts.errors import SettingsError

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
    """The function that ``hidden_act`` names; raises ``SettingsError`` for one that is not known."""
    name = config.get("hidden_act", default)
    if name not in _BY_NAME:
        raise SettingsError(f"checkpoint: hidden_act is {name!r}; supported are {', '.join(_BY_NAME)}")
    return _BY_NAME[name]
