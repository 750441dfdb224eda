"""The sides as running servers, and how each is asked: epd's stack, and peers in their environments."""

from __future__ import annotations

import base64
import json
import os
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.encoder.site.costs import tree_cpu_seconds
from bench.encoder.site.device import DeviceModel
from bench.encoder.site.media import Media
from bench.encoder.site.stack import running_site
from bench.peers.environments import Peer, PeerError, interpreter, server_command
from bench.peers.load import Target

EPD = "epd"
_ROOT = Path(__file__).parents[2]
_START_SECONDS = 180.0
_STOP_SECONDS = 5.0
_WAIT = 240.0
#: The batch of infinity-emb and of epd, in images; those of litserve and mosec are in requests.
BATCH = 32


@dataclass(frozen=True, slots=True)
class Work:
    """What all sides of a comparison do. ``device`` stands in for the encoder, and then no weights are read.

    ``layouts`` are processes and requests of a batch, for litserve and mosec.
    """

    family: str
    checkpoint: Path
    folder: Path
    threads: int
    device: DeviceModel | None
    layouts: Mapping[Peer, tuple[int, int]]


@dataclass(frozen=True, slots=True)
class Side:
    """A running side. ``pause`` and ``resume`` stop and continue its processes."""

    target: Target
    of_urls: Callable[[Sequence[str]], bytes]
    of_files: Callable[[Sequence[bytes]], bytes]
    pause: Callable[[], None]
    resume: Callable[[], None]


@contextmanager
def running_epd(work: Work, media: Media) -> Iterator[Side]:
    """A stack as ``epd up`` starts it."""
    config = (
        None
        if work.device
        else f'default_model = "m"\n[encoders.m]\nfamily = "{work.family}"\npath = "{work.checkpoint}"\n'
        'dtype = "float32"\n[models.m]\nimage = "m"\n'
    )
    settings = {"EPD_TORCH_THREADS": str(work.threads), "EPD_MAX_BATCH_ITEMS": str(BATCH)}
    with running_site(media, work.device, settings, config) as site:
        yield Side(
            Target(
                EPD,
                site.port,
                "/v1/encode",
                _check_epd,
                cpu_seconds=lambda: sum(map(tree_cpu_seconds, site.parts().values())),
            ),
            of_urls=lambda urls: _json(items=[{"type": "image", "url": url} for url in urls], wait=_WAIT),
            of_files=lambda files: _json(
                items=[{"type": "image", "data": base64.b64encode(file).decode()} for file in files],
                wait=_WAIT,
            ),
            pause=_nothing,  # its heartbeats would be missed
            resume=_nothing,
        )


@contextmanager
def running_peer(peer: Peer, work: Work, say: Callable[[str], None]) -> Iterator[Side]:
    """A peer's server, with all processes below it.

    Raises:
        PeerError: it cannot be installed, or does not start.
    """
    python = interpreter(peer, say)
    port = _free_port()
    log = work.folder / f"{peer}.log"
    environment = {
        "PATH": f"{python.parent}:/usr/local/bin:/usr/bin:/bin",
        "HOME": str(work.folder),
        "OMP_NUM_THREADS": str(work.threads),
        "DO_NOT_TRACK": "1",
        "HF_HUB_OFFLINE": "1",
        "MOSEC_TIMEOUT": str(round(1000 * _WAIT)),
        # By default it refuses to download from private and loopback addresses.
        "INFINITY_MEDIA_URL_BLACKLIST": "10.0.0.0/8",
    }
    with (
        log.open("wb") as output,
        subprocess.Popen(
            server_command(python, peer, _arguments(peer, work, port)), cwd=_ROOT, env=environment,
            stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True,
        ) as process,
    ):  # fmt: skip
        try:
            _wait_ready(peer, port, process, log)
            yield _side(peer, work, port, process.pid)
        finally:
            _stop(process)


def _arguments(peer: Peer, work: Work, port: int) -> list[str]:
    own = ["--port", str(port), "--threads", str(work.threads), "--lock", str(work.folder / "device.lock")]
    if work.device:
        own += ["--device-ms", str(work.device.batch_ms), str(work.device.item_ms)]
    own += ["--checkpoint", str(work.checkpoint)]
    if peer is not Peer.INFINITY:
        layout = [str(number) for number in work.layouts[peer]]
        address = ["--address", "127.0.0.1", "--log-level", "warning"] if peer is Peer.MOSEC else []
        return [*own, "--layout", *layout, *address]
    command = f"v2 --model-id {work.checkpoint} --served-model-name m --engine torch --device cpu"
    command += f" --dtype float32 --batch-size {BATCH} --no-bettertransformer --no-compile"
    command += f" --host 127.0.0.1 --port {port} --log-level warning"
    return [*own, "--", *command.split()]


def _side(peer: Peer, work: Work, port: int, group: int) -> Side:
    def send(number: signal.Signals) -> Callable[[], None]:
        return lambda: os.killpg(group, number)

    def cpu_seconds() -> float:
        return tree_cpu_seconds(group)

    pause, resume = send(signal.SIGSTOP), send(signal.SIGCONT)
    if peer is Peer.INFINITY:
        return Side(
            Target(peer, port, "/embeddings", _check_infinity, cpu_seconds),
            of_urls=lambda urls: _json(model="m", modality="image", input=list(urls)),
            of_files=lambda files: _json(model="m", modality="image", input=list(map(_data_url, files))),
            pause=pause,
            resume=resume,
        )
    path = "/encode" if peer is Peer.LITSERVE else "/inference"
    return Side(
        Target(peer, port, path, _check_rows, cpu_seconds),
        of_urls=lambda urls: _json(urls=list(urls)),
        of_files=lambda files: _json(files=[base64.b64encode(file).decode() for file in files]),
        pause=pause,
        resume=resume,
    )


def _check_epd(body: bytes, count: int) -> None:
    answer = json.loads(body)
    good = [item for item in answer.get("items", []) if item["state"] == "done"]
    if answer["state"] != "done" or len(good) != count:
        raise RuntimeError(f"{EPD} did not encode {count} images: {body[:500]!r}")


def _check_infinity(body: bytes, count: int) -> None:
    found = [one["embedding"] for one in json.loads(body)["data"]]
    if len(found) != count or not all(found):
        raise RuntimeError(f"infinity did not encode {count} images: {body[:500]!r}")


def _check_rows(body: bytes, count: int) -> None:
    if not body or len(body) % (4 * count):
        raise RuntimeError(f"not the rows of {count} images: {len(body)} bytes")


def _json(**fields: Any) -> bytes:
    return json.dumps(fields).encode()


def _data_url(file: bytes) -> str:
    return f"data:image/jpeg;base64,{base64.b64encode(file).decode()}"


def _nothing() -> None:
    """Do nothing."""


def _free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def _wait_ready(peer: Peer, port: int, process: subprocess.Popen[bytes], log: Path) -> None:
    path = "metrics" if peer is Peer.MOSEC else "health"
    end = time.monotonic() + _START_SECONDS
    while process.poll() is None and time.monotonic() < end:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/{path}", timeout=2):
                return
        except (urllib.error.URLError, OSError):
            time.sleep(0.2)
    raise PeerError(f"{peer} did not start: {log.read_text(encoding='utf-8', errors='replace')[-1500:]}")


def _stop(process: subprocess.Popen[bytes]) -> None:
    """End the whole group: children of litserve outlive a SIGTERM to their parent."""
    for number in (signal.SIGCONT, signal.SIGTERM):
        _signal_group(process.pid, number)
    with suppress(subprocess.TimeoutExpired):
        process.wait(_STOP_SECONDS)
    _signal_group(process.pid, signal.SIGKILL)


def _signal_group(group: int, number: signal.Signals) -> None:
    with suppress(ProcessLookupError):
        os.killpg(group, number)
