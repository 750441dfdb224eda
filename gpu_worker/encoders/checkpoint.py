"""A checkpoint folder: its JSON files, which file holds which tensor, and the digest of what is used of it.

Layout as published on the hub: ``config.json``; ``model.safetensors``, or shards with
``model.safetensors.index.json``; optional preprocessor files. Every fault raises ``SettingsError``.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

from epd.config import EncoderConfig
from epd.contracts.errors import SettingsError

_INDEX = "model.safetensors.index.json"
_CONFIG_FILES = (
    "config.json",
    "preprocessor_config.json",
    "video_preprocessor_config.json",
    "processor_config.json",
)
_READ_BYTES = 1 << 22


def locate_checkpoint(name: str, config: EncoderConfig) -> Checkpoint:
    """The folder that a configured encoder names.

    Nothing is downloaded: hub ids are looked up in the local cache.
    """
    folder = config.path if config.path is not None else _hub_folder(name, config)
    if not (folder / "config.json").is_file():
        raise SettingsError(f"encoders.{name}.path: no config.json in {folder}")
    return Checkpoint(folder)


def _hub_folder(name: str, config: EncoderConfig) -> Path:
    try:
        from huggingface_hub import snapshot_download  # an optional package, wanted for hub ids only
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
    """A checkpoint folder that holds a ``config.json``."""

    folder: Path

    @cached_property
    def config(self) -> Mapping[str, Any]:
        """The model's own configuration."""
        return self._json("config.json") or {}

    @cached_property
    def image_processor(self) -> Mapping[str, Any]:
        """Preprocessing of images: an older folder has a file of its own, a newer one a section."""
        combined = self._json("processor_config.json") or {}
        return self._json("preprocessor_config.json") or combined.get("image_processor") or {}

    @cached_property
    def feature_extractor(self) -> Mapping[str, Any]:
        """Preprocessing of sound: a section where images have one too, else the older file."""
        combined = self._json("processor_config.json") or {}
        return combined.get("feature_extractor") or self._json("preprocessor_config.json") or {}

    @cached_property
    def video_processor(self) -> Mapping[str, Any]:
        """Preprocessing of videos, empty where the checkpoint has no rule of its own."""
        combined = self._json("processor_config.json") or {}
        return self._json("video_preprocessor_config.json") or combined.get("video_processor") or {}

    @cached_property
    def tensor_files(self) -> Mapping[str, Path]:
        """Tensor name to the file that holds it; reads headers and the index only."""
        index = self._json(_INDEX)
        if index is not None:
            return {tensor: self._shard(str(shard)) for tensor, shard in index["weight_map"].items()}
        files = sorted(self.folder.glob("*.safetensors"))
        if not files:
            raise SettingsError(f"{self.folder}: no safetensors file")
        return {tensor: file for file in files for tensor in _tensor_names(file)}

    def digest(self, files: Iterable[Path]) -> str:
        """sha256 hex over the configuration files and whole weight files, each framed by name and size."""
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
            raise SettingsError(f"{self.folder / _INDEX}: names {name!r}, which is not a file beside it")
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
