"""The only reader of the environment. A setting is ``EPD_<NAME>``; unknown and invalid ones fail at start."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import Field, StringConstraints, ValidationError, model_validator
from pydantic.functional_validators import BeforeValidator
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

from epd.contracts.errors import SettingsError

_PREFIX = "EPD_"
#: The prefix of names that only this project's tests read. They are neither settings nor mistakes.
_TEST_PREFIX = "EPD_TEST_"
MIB = 1 << 20
GIB = 1 << 30


def _comma_separated(value: object) -> object:
    if isinstance(value, str):
        return tuple(part.strip() for part in value.split(",") if part.strip())
    return value


#: A host name or an address, with or without a port. A URL or a wildcard would never match, so it is refused.
_HOST = r"^([A-Za-z0-9_.-]+(:\d{1,5})?|\[[0-9A-Fa-f:.]+\](:\d{1,5})?|[0-9A-Fa-f:.]+)$"
Host = Annotated[str, StringConstraints(pattern=_HOST)]
Hosts = Annotated[tuple[Host, ...], NoDecode, BeforeValidator(_comma_separated)]
LogLevel = Annotated[
    Literal["DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL"],
    BeforeValidator(lambda value: value.upper() if isinstance(value, str) else value),
]


class Settings(BaseSettings):
    """All settings. Sizes are bytes, times are seconds, rates are per second."""

    model_config = SettingsConfigDict(env_prefix=_PREFIX, frozen=True, extra="forbid", allow_inf_nan=False)

    # servers
    broker_url: str = "redis://127.0.0.1:6379/0"
    store_url: str = "redis://127.0.0.1:6379/1"
    store_timeout: float = Field(default=5.0, gt=0)

    # files
    config: Path = Path("epd.toml")
    blob_dir: Path = Path("/dev/shm/epd/blobs")
    blob_bytes: int = Field(default=4 * GIB, ge=MIB)
    media_ttl: float = Field(default=3600, gt=0)
    embedding_dir: Path = Path("/dev/shm/epd/embeddings")
    embedding_bytes: int = Field(default=4 * GIB, ge=MIB)
    embedding_ttl: float = Field(default=7 * 86400, gt=0)
    l2_dir: Annotated[Path | None, BeforeValidator(lambda value: None if value == "" else value)] = None
    l2_bytes: int = Field(default=64 * GIB, ge=MIB)
    segment_cache: bool = True
    segments: int = Field(default=200_000, ge=1)

    # jobs
    job_deadline: float = Field(default=600, gt=0)
    max_deadline: float = Field(default=3600, gt=0)
    job_ttl: float = Field(default=3600, gt=0)
    handoff_ttl: float = Field(default=600, gt=0)
    flight_lease: float = Field(default=60, gt=0)
    chunk_items: int = Field(default=4, ge=1, le=64)
    max_items: int = Field(default=256, ge=1)
    max_deliveries: int = Field(default=3, ge=1)
    heartbeat_period: float = Field(default=1.0, gt=0)
    heartbeat_ttl: float = Field(default=5.0, gt=0)

    # fetch
    fetch_allow_hosts: Hosts = ()
    fetch_connect_timeout: float = Field(default=5, gt=0)
    fetch_read_timeout: float = Field(default=10, gt=0)
    fetch_total_timeout: float = Field(default=60, gt=0)
    fetch_downloads: int = Field(default=64, ge=1, le=512)
    fetch_retries: int = Field(default=2, ge=0, le=10)
    fetch_max_redirects: int = Field(default=5, ge=0, le=20)
    url_ttl: float = Field(default=0, ge=0)
    max_image_bytes: int = Field(default=64 * MIB, ge=1)
    max_audio_bytes: int = Field(default=256 * MIB, ge=1)
    max_video_bytes: int = Field(default=GIB, ge=1)

    # decode
    decode_processes: int = Field(default=0, ge=0, le=512)
    decode_timeout: float = Field(default=120, gt=0)
    max_image_pixels: int = Field(default=100_000_000, ge=1)
    max_frame_bytes: int = Field(default=GIB, ge=1)
    max_audio_seconds: float = Field(default=3600, gt=0)
    max_video_seconds: float = Field(default=3600, gt=0)

    # encode
    max_batch_items: int = Field(default=32, ge=1)
    max_batch_cost: int = Field(default=65_536, ge=1)
    torch_threads: int = Field(default=0, ge=0)
    worker_prefetch: int = Field(default=96, ge=1)
    batch_timeout: float = Field(default=300, gt=0)
    cuda_graphs: Literal["auto", "off", "required"] = "auto"
    graph_memory_bytes: int = Field(default=4 * GIB, ge=0)
    max_graphs: int = Field(default=32, ge=1)
    staging_bytes: int = Field(default=256 * MIB, ge=MIB)

    # api
    api_host: str = "127.0.0.1"
    api_port: int = Field(default=8000, ge=0, le=65535)
    max_body_bytes: int = Field(default=96 * MIB, ge=1)
    max_wait: float = Field(default=300, gt=0)
    max_queue_items: int = Field(default=10_000, ge=1)
    max_queue_bytes: int = Field(default=64 * GIB, ge=1)
    flower_port: int = Field(default=5555, ge=0, le=65535)
    task_events: bool = True
    log_level: LogLevel = "INFO"

    @model_validator(mode="after")
    def _fit_together(self) -> Self:
        """Files must outlive the jobs that name them, and one late heartbeat must not mark a worker dead."""
        if self.job_deadline > self.max_deadline:
            raise ValueError("EPD_JOB_DEADLINE is above EPD_MAX_DEADLINE")
        if self.media_ttl < self.max_deadline:
            raise ValueError("EPD_MEDIA_TTL is below EPD_MAX_DEADLINE: uploads would go before their jobs")
        if self.heartbeat_ttl < 2 * self.heartbeat_period:
            raise ValueError("EPD_HEARTBEAT_TTL is below two EPD_HEARTBEAT_PERIODs")
        if self.l2_dir is not None and self.l2_dir.resolve() == self.embedding_dir.resolve():
            raise ValueError("EPD_L2_DIR is EPD_EMBEDDING_DIR: the second tier needs a folder of its own")
        return self


def read_settings() -> Settings:
    """Read the settings; raises ``SettingsError`` naming each unknown or invalid variable."""
    known = {_PREFIX + name.upper() for name in Settings.model_fields}
    given = (name for name in os.environ if name.startswith(_PREFIX) and not name.startswith(_TEST_PREFIX))
    unknown = sorted(name for name in given if name not in known)
    if unknown:
        raise SettingsError(f"unknown setting: {', '.join(unknown)}")
    try:
        return Settings()
    except ValidationError as error:
        raise SettingsError("; ".join(_sentence(item) for item in error.errors())) from error


@lru_cache(maxsize=1)
def settings() -> Settings:
    """The settings of this process, read once."""
    return read_settings()


def given_settings() -> dict[str, str]:
    """The settings that the environment gives, unparsed, by variable name."""
    return {name: value for name, value in os.environ.items() if name.startswith(_PREFIX)}


def child_environment(overrides: Mapping[str, str]) -> dict[str, str]:
    """The environment for a child process: this process's own, with settings replaced."""
    return {**os.environ, **overrides}


def environment_without_settings(overrides: Mapping[str, str]) -> dict[str, str]:
    """The environment for a child process that needs no setting, and must not see the secrets in them."""
    return {name: value for name, value in os.environ.items() if not name.startswith(_PREFIX)} | {**overrides}


def _sentence(item: object) -> str:
    assert isinstance(item, dict)
    if not item["loc"]:  # a check of several settings; its message names them
        return str(item["msg"])
    name = _PREFIX + "_".join(part for part in item["loc"] if isinstance(part, str)).upper()
    return f"{name}={item.get('input')!r}: {item['msg']}"


def require_folder(folder: Path, named_by: str) -> None:
    """Create a folder and write to it; raises ``SettingsError`` with ``named_by`` when that fails."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(b"\0")
    except OSError as error:
        raise SettingsError(f"{named_by} {folder}: {error.strerror}") from error
