"""``epd.toml``: which encoders exist and which models group them by media type.

Relative paths start at the folder of the file. An example:

    default_model = "demo"

    [encoders.dinov2-small]
    family = "dinov2"
    path = ".epd/models/dinov2-small"    # or: hub = "facebook/dinov2-small", revision = "..."
    dtype = "auto"                        # auto | float32 | bfloat16 | float16
    device = "auto"                       # auto | cpu | cuda | cuda:0

    [models.demo]
    image = "dinov2-small"
    audio = "whisper-tiny.en"
"""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, ValidationError, model_validator

from epd.contracts.embedding import MAX_ENCODER_NAME
from epd.contracts.errors import SettingsError, UnknownModel
from epd.contracts.media import Modality
from epd.contracts.wire import Wire

#: Errors whose value does not help: for a missing key it would be the whole surrounding table.
_REASONS = {"missing": "missing", "extra_forbidden": "no such key"}
#: The most characters of a wrong value that a message shows.
_SHOWN = 60
_EncoderName = Annotated[str, Field(min_length=1, max_length=MAX_ENCODER_NAME)]


class EncoderConfig(Wire):
    """One encoder: its family and its checkpoint, a folder or a hub id that is in the local cache."""

    family: str
    path: Path | None = None
    hub: str | None = None
    revision: str | None = None
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    device: str = Field(default="auto", pattern=r"^(auto|cpu|cuda(:\d+)?)$")

    @model_validator(mode="after")
    def _one_place(self) -> EncoderConfig:
        if (self.path is None) == (self.hub is None):
            raise ValueError("exactly one of path, hub")
        return self


class ModelConfig(Wire):
    """A model: the name of the encoder for each media type."""

    image: str | None = None
    video: str | None = None
    audio: str | None = None

    def encoder_for(self, modality: Modality) -> str | None:
        """The encoder's name for a media type, or None."""
        return {Modality.IMAGE: self.image, Modality.VIDEO: self.video, Modality.AUDIO: self.audio}[modality]


class Config(Wire):
    """The whole file, validated: models name known encoders, and the default is a known model."""

    default_model: str
    encoders: dict[_EncoderName, EncoderConfig] = Field(min_length=1)
    models: dict[str, ModelConfig] = Field(min_length=1)

    @model_validator(mode="after")
    def _names_exist(self) -> Config:
        if self.default_model not in self.models:
            raise ValueError(f"default_model {self.default_model!r} is not in [models]")
        for name, model in self.models.items():
            for modality in Modality:
                encoder = model.encoder_for(modality)
                if encoder is not None and encoder not in self.encoders:
                    raise ValueError(f"models.{name}.{modality}: no encoder {encoder!r}")
        return self

    def model(self, name: str | None) -> tuple[str, ModelConfig]:
        """A model by name (None: the default); raises ``UnknownModel``."""
        wanted = name or self.default_model
        if wanted not in self.models:
            raise UnknownModel(f"no model {wanted!r}; there are: {', '.join(sorted(self.models))}")
        return wanted, self.models[wanted]


def load_config(path: Path) -> Config:
    """Read and validate a config file. Relative paths start at its folder.

    Raises:
        SettingsError: the file is missing or not TOML, or a key or value is wrong; the message names it.
    """
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8"))
        config = Config.model_validate(data)
    except OSError as error:
        raise SettingsError(f"config file {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise SettingsError(f"config file {path}: not UTF-8 text") from error
    except tomllib.TOMLDecodeError as error:
        raise SettingsError(f"config file {path}: {error}") from error
    except ValidationError as error:
        raise SettingsError(f"config file {path}: " + "; ".join(map(_sentence, error.errors()))) from error
    return _with_absolute_paths(config, path.resolve().parent)


def _with_absolute_paths(config: Config, folder: Path) -> Config:
    encoders = {
        name: encoder.model_copy(update={"path": folder / encoder.path}) if encoder.path else encoder
        for name, encoder in config.encoders.items()
    }
    return config.model_copy(update={"encoders": encoders})


def _sentence(item: object) -> str:
    assert isinstance(item, dict)
    place = ".".join(str(part) for part in item["loc"])
    reason = _REASONS.get(item["type"]) or str(item["msg"]).removeprefix("Value error, ")
    given = item.get("input")
    if item["type"] == "value_error" or item["type"] in _REASONS or isinstance(given, dict | list):
        return f"{place}: {reason}" if place else reason
    return f"{place}={_shortened(repr(given))}: {reason}"


def _shortened(text: str) -> str:
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."
