"""Random tensors for every name that a module wants."""

from __future__ import annotations

import torch
from torch import Tensor, nn


def random_state(module: nn.Module, prefix: str) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(7)
    shapes = {name: value.shape for name, value in module.state_dict().items()}
    return {prefix + n: torch.randn(s, generator=generator) * 0.2 for n, s in sorted(shapes.items())}
