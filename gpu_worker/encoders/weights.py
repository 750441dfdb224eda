"""Fill an encoder module from a checkpoint: only its own tensors are read, mapped from disk, cast on load."""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from epd.contracts.errors import SettingsError
from gpu_worker.encoders.checkpoint import Checkpoint

_log = logging.getLogger(__name__)
_SHOWN = 5  #: names shown of a long list in an error


@dataclass(frozen=True, kw_only=True, slots=True)
class LoadedWeights:
    """What was read: the digest of it and the number of parameters."""

    digest: str
    parameters: int


def load_weights(
    module: nn.Module,
    checkpoint: Checkpoint,
    *,
    prefixes: Sequence[str],
    device: torch.device,
    dtype: torch.dtype,
    unused: Collection[str] = (),
    parts: Collection[str] = ("",),
) -> LoadedWeights:
    """Assign the tensors under the first prefix that the checkpoint knows to a module built on ``meta``.

    ``unused`` are names under the prefix that the module rightly lacks. ``parts`` are how the encoder's
    names begin where other models' tensors lie under the same prefix. A missing, unexpected or wrongly
    shaped tensor raises ``SettingsError`` that names it.
    """
    wanted = {name: tuple(value.shape) for name, value in module.state_dict().items()}
    prefix = _prefix_of(checkpoint, prefixes, wanted)
    own = tuple(prefix + part for part in parts)
    present = {name.removeprefix(prefix) for name in checkpoint.tensor_files if name.startswith(own)}
    _refuse(checkpoint, "lacks", wanted.keys() - present)
    _refuse(checkpoint, "has unexpected", present - wanted.keys() - set(unused))
    by_file: dict[Path, list[str]] = defaultdict(list)
    for name in wanted:
        by_file[checkpoint.tensor_files[prefix + name]].append(name)
    state: dict[str, Tensor] = {}
    for file, names in by_file.items():
        state |= _read(file, prefix, names, device, dtype)
    wrong = [f"{n} {tuple(state[n].shape)}, not {wanted[n]}" for n in wanted if state[n].shape != wanted[n]]
    _refuse(checkpoint, "has another shape for", wrong)
    module.load_state_dict(state, assign=True)
    module.requires_grad_(False).eval()
    count = sum(tensor.numel() for tensor in state.values())
    _log.info("read %s parameters of %s as %s to %s", count, checkpoint.folder, dtype, device)
    return LoadedWeights(digest=checkpoint.digest(by_file), parameters=count)


def _prefix_of(checkpoint: Checkpoint, prefixes: Sequence[str], wanted: Collection[str]) -> str:
    """The first prefix under which the checkpoint has any tensor that the module wants."""
    for prefix in prefixes:
        if any(prefix + name in checkpoint.tensor_files for name in wanted):
            return prefix
    raise SettingsError(f"{checkpoint.folder}: no encoder tensor under {' or '.join(map(repr, prefixes))}")


def _read(
    file: Path, prefix: str, names: Sequence[str], device: torch.device, dtype: torch.dtype
) -> dict[str, Tensor]:
    """Copies, never views: a checkpoint that is replaced on disk must not change a running encoder."""
    try:
        with safe_open(file, framework="pt") as tensors:
            return {name: tensors.get_tensor(prefix + name).to(device, dtype, copy=True) for name in names}
    except (SafetensorError, OSError) as error:
        raise SettingsError(f"{file}: cannot be read: {error}") from error


def _refuse(checkpoint: Checkpoint, what: str, names: Collection[str]) -> None:
    if names:
        shown = ", ".join(sorted(names)[:_SHOWN])
        more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
        raise SettingsError(f"{checkpoint.folder}: {what} {shown}{more}")
