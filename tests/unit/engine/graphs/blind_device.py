"""A device that only knows shapes: what would wait for a real one raises, or is noted.

It is torch's ``meta`` device in the place of CUDA. Reading a value there, or a shape that depends on values,
raises; ``Waits`` notes copies between host and device that would block. Tensors of it say that they are on
CUDA, so that forwards take the way that they take there.
"""

from __future__ import annotations

import gc
import types
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from gpu_worker.encoders.base import Encoder

BLIND = torch.device("meta")
_NOT_OWNED = (type, types.ModuleType, types.FunctionType, types.BuiltinFunctionType, types.CodeType)


class Waits(TorchDispatchMode):
    """Notes every copy between host and device; ``blocking`` are those that would hold the host up."""

    def __init__(self) -> None:
        super().__init__()
        self.copies: list[str] = []
        self.blocking: list[str] = []
        self.made_on_host: list[str] = []
        self.calls: set[str] = set()

    def __torch_dispatch__(self, func: Any, kinds: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        self.calls.add(str(func))
        devices = {one.device.type for one in (*args, result) if isinstance(one, Tensor) and one.dim()}
        if len(devices) > 1:
            self.copies.append(str(func))
            if not kwargs.get("non_blocking"):
                self.blocking.append(str(func))
        elif devices == {"cpu"} and str(func) != "aten.detach.default":
            self.made_on_host.append(str(func))
        return result


@contextmanager
def blind(encoder: Encoder) -> Iterator[Waits]:
    """The encoder on the blind device; it is spoilt for anything else afterwards."""
    waits = Waits()
    _move(encoder)
    with (
        torch.inference_mode(),
        patch.object(Tensor, "pin_memory", lambda self, *_: self),
        patch.object(Tensor, "is_cuda", property(lambda self: self.device == BLIND), create=True),
        waits,
    ):
        yield waits


def _move(encoder: Encoder) -> None:
    """Put one without values in the place of every tensor that an encoder holds in a dictionary."""
    object.__setattr__(encoder, "card", encoder.card.model_copy(update={"device": str(BLIND)}))
    seen: set[int] = set()
    pending: list[Any] = [encoder]
    while pending:
        one = pending.pop()
        if id(one) in seen or isinstance(one, (*_NOT_OWNED, Tensor)):
            continue
        seen.add(id(one))
        if isinstance(one, dict):
            for name, value in one.items():
                if isinstance(value, Tensor):
                    one[name] = torch.empty(value.shape, dtype=value.dtype, device=BLIND)
        pending += gc.get_referents(one)
