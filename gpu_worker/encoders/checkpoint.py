"""A checkpoint folder: its JSON files, its tensors, and the weights that a tower takes from it.

Layout as published on the hub: ``config.json``; ``model.safetensors``, or shards with
``model.safetensors.index.json``; optional preprocessor files. Every fault raises ``SettingsError``.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from epd.config import EncoderConfig
from epd.contracts.errors import SettingsError

_log = logging.getLogger(__name__)

_INDEX = "model.safetensors.index.json"
_CONFIG_FILES = (
    "config.json",
    "preprocessor_config.json",
    "video_preprocessor_config.json",
    "processor_config.json",
)
_READ_BYTES = 1 << 22
_SHOWN = 5  #: names shown of a long list in an error


def locate_checkpoint(name: str, config: EncoderConfig) -> Checkpoint:
    """The folder that the configuration of an encoder names.

    Nothing is downloaded: hub ids are looked up in the local cache only.
    """
    folder = config.path if config.path is not None else _hub_folder(name, config)
    if not (folder / "config.json").is_file():
        raise SettingsError(f"encoders.{name}.path: no config.json in {folder}")
    return Checkpoint(folder)


def _hub_folder(name: str, config: EncoderConfig) -> Path:
    try:
        from huggingface_hub import snapshot_download  # optional: needed for hub ids only
        from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError
    except ImportError as error:
        raise SettingsError(f"encoders.{name}.hub: needs the package huggingface_hub; or use path") from error
    try:
        return Path(snapshot_download(str(config.hub), revision=config.revision, local_files_only=True))
    except (LocalEntryNotFoundError, HfHubHTTPError, ValueError) as error:
        raise SettingsError(
            f"encoders.{name}.hub: {config.hub!r} (revision {config.revision!r}) is not in the local cache"
        ) from error


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint folder with a ``config.json``."""

    folder: Path

    @cached_property
    def config(self) -> Mapping[str, Any]:
        """The content of ``config.json``."""
        return self._json("config.json") or {}

    @cached_property
    def image_processor(self) -> Mapping[str, Any]:
        """Preprocessing of images: a separate file in older folders, a section in newer ones."""
        combined = self._json("processor_config.json") or {}
        return self._json("preprocessor_config.json") or combined.get("image_processor") or {}

    @cached_property
    def feature_extractor(self) -> Mapping[str, Any]:
        """Preprocessing of audio: a section next to the images' section, else the older file."""
        combined = self._json("processor_config.json") or {}
        return combined.get("feature_extractor") or self._json("preprocessor_config.json") or {}

    @cached_property
    def video_processor(self) -> Mapping[str, Any]:
        """Preprocessing of videos; empty if the checkpoint has no rule for them."""
        combined = self._json("processor_config.json") or {}
        return self._json("video_preprocessor_config.json") or combined.get("video_processor") or {}

    @cached_property
    def tensor_files(self) -> Mapping[str, Path]:
        """Tensor name to the file that holds it. Only headers and the index are read."""
        index = self._json(_INDEX)
        if index is not None:
            return {tensor: self._shard(str(shard)) for tensor, shard in index["weight_map"].items()}
        files = sorted(self.folder.glob("*.safetensors"))
        if not files:
            raise SettingsError(f"{self.folder}: no safetensors file")
        return {tensor: file for file in files for tensor in _tensor_names(file)}

    def digest(self, files: Iterable[Path]) -> str:
        """sha256 (hex) over the configuration files and whole weight files, each framed by name and size."""
        hasher = hashlib.sha256()
        configs = [self.folder / name for name in _CONFIG_FILES]
        for file in [*(c for c in configs if c.is_file()), *sorted(set(files))]:
            hasher.update(f"{file.name}\0{file.stat().st_size}\0".encode())
            with file.open("rb") as stream:
                while block := stream.read(_READ_BYTES):
                    hasher.update(block)
        return hasher.hexdigest()

    def _shard(self, name: str) -> Path:
        file = self.folder / name
        if Path(name).name != name or not file.is_file():
            raise SettingsError(f"{self.folder / _INDEX}: names {name!r}, which is not a file next to it")
        return file

    def _json(self, name: str) -> Mapping[str, Any] | None:
        file = self.folder / name
        if not file.is_file():
            return None
        try:
            value = json.loads(file.read_bytes())
        except ValueError as error:
            raise SettingsError(f"{file}: not JSON: {error}") from error
        if not isinstance(value, dict):
            raise SettingsError(f"{file}: not a JSON object")
        return value


def _tensor_names(file: Path) -> list[str]:
    try:
        with safe_open(file, framework="pt") as tensors:
            return list(tensors.keys())
    except (SafetensorError, OSError) as error:
        raise SettingsError(f"{file}: not a safetensors file: {error}") from error


@dataclass(frozen=True, kw_only=True, slots=True)
class LoadedWeights:
    """The digest of what was read, and the number of parameters."""

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
    """Fill a module that was built on ``meta`` from a checkpoint.

    Args:
        module: takes the tensors.
        checkpoint: holds them.
        prefixes: what names in the checkpoint may begin with; the first that is found counts.
        device: where the weights go.
        dtype: what they are converted to.
        unused: names under the prefix that the module leaves out.
        parts: what the encoder's names begin with, if other tensors have the same prefix.

    Raises:
        SettingsError: a tensor is missing, unexpected or of the wrong shape. The text names it.
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
    """The first prefix under which the checkpoint has any tensor of the module."""
    for prefix in prefixes:
        if any(prefix + name in checkpoint.tensor_files for name in wanted):
            return prefix
    raise SettingsError(f"{checkpoint.folder}: no encoder tensor under {' or '.join(map(repr, prefixes))}")


def _read(
    file: Path, prefix: str, names: Sequence[str], device: torch.device, dtype: torch.dtype
) -> dict[str, Tensor]:
    """Copies, not views: a running encoder must not change when its checkpoint is replaced on disk."""
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
