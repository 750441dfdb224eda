"""What the command lines of all benchmarks share: options, the load of the machine, output, exit status."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NoReturn

_MEMORY = Path("/dev/shm")


def make_parser(bench: str, description: str | None) -> argparse.ArgumentParser:
    """A parser with ``--json``; ``bench`` is the name after ``python -m bench.``."""
    parser = argparse.ArgumentParser(prog=f"python -m bench.{bench}", description=description)
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of text")
    return parser


def load_average() -> float:
    """The machine's load average over one minute. Take it before the measurement adds to it."""
    return os.getloadavg()[0]


def machine(load_before: float) -> dict[str, Any]:
    """The machine's fields of a result."""
    return {"load_average_before": load_before, "cpus": os.cpu_count()}


def finish(figures: Mapping[str, Any], text: str, *, as_json: bool, passed: bool = True) -> NoReturn:
    """Print the figures or the text, and exit with status 0 if the targets are reached, else 1."""
    sys.stdout.write(json.dumps(figures) + "\n" if as_json else text)
    sys.exit(0 if passed else 1)


@contextmanager
def folder_in_memory(prefix: str) -> Iterator[Path]:
    """A temporary folder in ``/dev/shm``, as in production, or elsewhere if the machine has none."""
    with TemporaryDirectory(prefix=prefix, dir=_MEMORY if _MEMORY.is_dir() else None) as name:
        yield Path(name)
