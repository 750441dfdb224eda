"""``epd up``: runs the whole stack on this machine until Ctrl-C."""

from __future__ import annotations

import contextlib
import os
import select
import shlex
import signal
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from epd.cli.doctor import require_server
from epd.settings import given_settings, settings
from epd.stack.parts import DEFAULT_DATA_DIR, StackOptions, env_file, port_is_free
from epd.stack.stack import Stack

_REDIS_PORT = 6379
#: Settings that the stack sets itself, from its options.
_OWN = frozenset({"EPD_BROKER_URL", "EPD_STORE_URL", "EPD_CONFIG", "EPD_API_HOST", "EPD_API_PORT"})
#: Settings that name a server, which has to run already.
_SERVERS = frozenset({"EPD_BROKER_URL", "EPD_STORE_URL"})


def up(
    data_dir: Annotated[
        Path, typer.Option(help="Folder for logs and the data of the embedded server.")
    ] = DEFAULT_DATA_DIR,
    flower: Annotated[bool, typer.Option(help="Run Flower too.")] = True,
    downloads: Annotated[int, typer.Option(min=1, help="Downloads at once.")] = 64,
    decode_processes: Annotated[int, typer.Option(min=1, help="Decoding processes.")] = 2,
    gpu_workers: Annotated[int, typer.Option(min=1, help="Encoder worker processes.")] = 1,
    devices: Annotated[str, typer.Option(help="auto, cpu, CUDA numbers (0,1), or cpu:2.")] = "auto",
) -> None:
    """Run API, workers, Flower and (unless EPD_BROKER_URL names one) an embedded Valkey server."""
    console = Console()
    given = given_settings()
    for name in _SERVERS & given.keys():
        require_server(name, given[name])
    options = StackOptions(
        config=settings().config,
        data_dir=data_dir,
        api_host=settings().api_host,
        api_port=settings().api_port,
        flower_port=settings().flower_port if flower else None,
        redis_port=_REDIS_PORT if port_is_free(_REDIS_PORT) else 0,
        broker_url=given.get("EPD_BROKER_URL"),
        store_url=given.get("EPD_STORE_URL"),
        downloads=downloads,
        decode_processes=decode_processes,
        gpu_workers=gpu_workers,
        devices=devices,
        overrides={name: value for name, value in given.items() if name not in _OWN},
    )
    stop = StopRequest()
    # Under nohup the stack outlives its terminal.
    hangup = () if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN else (signal.SIGHUP,)
    stop.on(signal.SIGINT, signal.SIGTERM, *hangup)
    with Stack(options) as stack:
        with console.status("starting") as spinner:
            stack.wait_ready(progress=lambda text: spinner.update(f"starting: {text}"), give_up=stop.is_asked)
        try:
            if not stop.is_asked():
                _announce(console, stack)
            _watch(console, stack, stop)
            console.print("stopping …")
        finally:
            env_file(data_dir).unlink(missing_ok=True)
    console.print("stopped")


def _announce(console: Console, stack: Stack) -> None:
    lines = [f"export {name}={shlex.quote(value)}" for name, value in sorted(stack.settings.items())]
    settings_file = env_file(stack.options.data_dir)
    settings_file.write_text("\n".join(lines) + "\n", encoding="utf-8")
    console.print(f"API     {stack.api_url}    docs {stack.api_url}/docs", soft_wrap=True)
    if stack.flower_url is not None:
        console.print(f"Flower  {stack.flower_url}", soft_wrap=True)
    console.print(f"Logs    {stack.options.data_dir / 'logs'}", soft_wrap=True)
    source = f"source {shlex.quote(str(settings_file))}"
    console.print("More workers, in another terminal:", soft_wrap=True)
    console.print(f"        {source} && celery -A tasks worker -Q decode -n decode2@%h", soft_wrap=True)
    console.print("Ctrl-C stops all of it.")


def _watch(console: Console, stack: Stack, stop: StopRequest) -> None:
    """Report each part that is restarted, until ``stop``; raises ``StackFailed`` when one cannot start."""
    reported = {name: stack.restarts(name) for name in stack.names()}
    while not stop.wait(1.0):
        stack.raise_if_one_cannot_start()
        for name in stack.names():
            if (restarts := stack.restarts(name)) != reported[name]:
                reported[name] = restarts
                log = stack.options.data_dir / "logs" / f"{name}.log"
                console.print(f"{name} died and was restarted ({restarts}x); see {log}", soft_wrap=True)


class StopRequest:
    """A flag that signal handlers set and the main thread waits for. It takes no lock."""

    def __init__(self) -> None:
        """Uses two file descriptors for the life of the process."""
        self._asked = False
        self._reading, self._writing = os.pipe()
        os.set_blocking(self._writing, False)

    def on(self, *numbers: signal.Signals) -> None:
        """Let each of these signals request the stop. Call it in the main thread."""
        for number in numbers:
            signal.signal(number, lambda *_: self.ask())

    def ask(self) -> None:
        """Request the stop; more than once is harmless."""
        self._asked = True
        with contextlib.suppress(BlockingIOError):  # full: the waiting thread is awake already
            os.write(self._writing, b"x")

    def is_asked(self) -> bool:
        """Whether the stop was requested."""
        return self._asked

    def wait(self, timeout: float) -> bool:
        """Wait at most ``timeout`` seconds; return whether the stop was requested."""
        select.select([self._reading], [], [], timeout)
        return self._asked
