"""``python -m demo``. Exit code 0 when every check passed, 1 with the reason otherwise, 130 after Ctrl-C."""

from __future__ import annotations

import os
import shutil
import signal
import sys
import tempfile
from pathlib import Path
from types import FrameType
from urllib.parse import urlsplit

import psutil
from rich.console import Console

from demo import scenes
from demo.leftovers import Leftovers, shm_names
from demo.samples import MEDIA, SERVED, demo_samples, served_photo
from demo.weights.ensure import ensure_weights
from epd.client.blocking import Client
from epd.contracts.errors import EpdError
from epd.stack.parts import StackOptions
from epd.stack.stack import Stack

ROOT = Path(__file__).parents[1]
WORK = ROOT / ".epd"
CONFIG = ROOT / "epd.toml"
DATA_PREFIX = "demo-"
START_LIMIT = 180.0
GONE_WITHIN = 10.0


def run_demo(console: Console) -> None:
    """Run all scenes. After a failure the logs of the stack are kept, and their folder is printed.

    Raises:
        EpdError: a check failed, the stack did not start, or the weights are missing.
    """
    with console.status("weights"):
        models = ensure_weights(WORK / "models", say=console.print)
    data_dir = _new_data_dir()
    try:
        leftovers = _play(console, data_dir, models["whisper-tiny.en"])
    except BaseException:
        console.print(f"logs: {data_dir / 'logs'}", style="yellow")
        raise
    found = leftovers.found(within=GONE_WITHIN)
    scenes.require(not found, "left behind: " + ", ".join(found))
    console.print("Stopped: no process of the stack runs and nothing of it is in /dev/shm.")
    shutil.rmtree(data_dir, ignore_errors=True)


def _new_data_dir() -> Path:
    """Create a folder for the logs and the server of this run; remove those of earlier failed runs."""
    for folder in WORK.glob(f"{DATA_PREFIX}[0-9]*-*"):
        if not psutil.pid_exists(int(folder.name.split("-")[1])):
            shutil.rmtree(folder, ignore_errors=True)
    return Path(tempfile.mkdtemp(prefix=f"{DATA_PREFIX}{os.getpid()}-", dir=WORK))


def _play(console: Console, data_dir: Path, decoder: Path) -> Leftovers:
    before = shm_names()
    with served_photo(MEDIA / SERVED) as server_url:
        options = StackOptions(
            config=CONFIG,
            data_dir=data_dir,
            downloads=8,
            overrides={"EPD_FETCH_ALLOW_HOSTS": urlsplit(server_url).netloc},
        )
        with Stack(options) as stack:
            _wait_ready(stack, console)
            with Client(stack.api_url) as client:
                _scenes(client, server_url, decoder, console)
            console.print("Stopping ...")
        return Leftovers(stack.settings, before)


def _wait_ready(stack: Stack, console: Console) -> None:
    with console.status("starting the stack") as status:
        stack.wait_ready(START_LIMIT, lambda missing: status.update(f"starting the stack: {missing}"))
    console.print(f"Stack is ready at {stack.api_url}: {', '.join(stack.names())}\n")


def _scenes(client: Client, server_url: str, decoder: Path, console: Console) -> None:
    samples = demo_samples(server_url)
    first = scenes.encode_all(client, samples, console)
    scenes.show_nearest(client, first, console)
    scenes.show_transcripts(client, first, decoder, console)
    scenes.encode_again(client, samples, first, console)


def main() -> int:
    """Run the demo. Ctrl-C and SIGTERM stop the stack too.

    Both raise SystemExit. With KeyboardInterrupt, although it was caught, about one run in twenty ended by
    SIGINT on a busy machine; the cause is unknown.
    """
    signal.signal(signal.SIGTERM, _end)
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, _end)
    console = Console()
    try:
        run_demo(console)
    except EpdError as error:
        console.print(f"demo failed: {error}", style="bold red", markup=False)
        return 1
    return 0


def _end(number: int, frame: FrameType | None) -> None:
    raise SystemExit(128 + number)


if __name__ == "__main__":
    sys.exit(main())
