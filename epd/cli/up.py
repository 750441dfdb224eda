"""``epd up``: the stack on this machine, until Ctrl-C."""

from __future__ import annotations

import shlex
import signal
import threading
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from epd.cli.parts import StackOptions, port_is_free
from epd.cli.stack import Stack
from epd.settings import given_settings, settings

_REDIS_PORT = 6379


def up(
    data_dir: Annotated[Path, typer.Option(help="Folder for logs and the server's data.")] = Path(
        ".epd/stack"
    ),
    flower: Annotated[bool, typer.Option(help="Run Flower too.")] = True,
    fetch_threads: Annotated[int, typer.Option(min=1)] = 32,
    decode_processes: Annotated[int, typer.Option(min=1)] = 2,
    gpu_workers: Annotated[int, typer.Option(min=1, help="Encoder worker processes.")] = 1,
    devices: Annotated[str, typer.Option(help="auto, cpu, or a CUDA device number.")] = "auto",
) -> None:
    """Run API, workers, Flower and (unless EPD_BROKER_URL names one) an embedded Valkey server."""
    console = Console()
    given = given_settings()
    broker = given.get("EPD_BROKER_URL")
    options = StackOptions(
        config=settings().config,
        data_dir=data_dir,
        api_port=settings().api_port,
        flower_port=settings().flower_port if flower else None,
        redis_port=_REDIS_PORT if port_is_free(_REDIS_PORT) else 0,
        broker_url=broker,
        store_url=given.get("EPD_STORE_URL"),
        fetch_threads=fetch_threads,
        decode_processes=decode_processes,
        gpu_workers=gpu_workers,
        devices=devices,
        overrides={name: value for name, value in given.items() if name not in _OWN},
    )
    ended = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: ended.set())
    with Stack(options) as stack:
        with console.status("starting") as spinner:
            stack.wait_ready(progress=lambda text: spinner.update(f"starting: {text}"), give_up=ended)
        if not ended.is_set():
            _announce(console, stack)
        while not ended.wait(1.0):
            pass
        console.print("stopping …")
    console.print("stopped")


#: Settings that the stack decides itself, from the options made above.
_OWN = frozenset({"EPD_BROKER_URL", "EPD_STORE_URL", "EPD_CONFIG", "EPD_API_PORT"})


def _announce(console: Console, stack: Stack) -> None:
    environment = stack.options.data_dir / "env"
    lines = [f"export {name}={shlex.quote(value)}" for name, value in sorted(stack.settings.items())]
    environment.write_text("\n".join(lines) + "\n", encoding="utf-8")
    console.print(f"API     {stack.api_url}    docs {stack.api_url}/docs")
    if stack.flower_url is not None:
        console.print(f"Flower  {stack.flower_url}")
    console.print(f"Logs    {stack.options.data_dir / 'logs'}")
    console.print(
        f"More workers, in another terminal: source {environment} && celery -A tasks worker -Q fetch"
    )
    console.print("Ctrl-C stops all of it.")
