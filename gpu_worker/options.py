"""The command line of ``python -m gpu_worker``: its own options, and the rest for the Celery worker."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass

from epd.contracts.errors import SettingsError

_DEFAULT_NAME = "gpu@%h"


@dataclass(frozen=True, slots=True)
class Options:
    """``device`` is a torch device name, or None for what the config says; ``node`` a Celery node name."""

    device: str | None
    node: str
    celery: tuple[str, ...]


def parse_options(arguments: Sequence[str]) -> Options:
    """Read the command line.

    Raises:
        SettingsError: ``--devices`` is not understood.
    """
    parser = argparse.ArgumentParser(
        prog="python -m gpu_worker",
        description="The batching encode worker. Further options are those of `celery worker`.",
        allow_abbrev=False,
    )
    parser.add_argument(
        "--devices", default="auto", help="auto (what the config says), cpu, or a CUDA number"
    )
    parser.add_argument("-n", "--hostname", default=_DEFAULT_NAME, help="Celery node name; %%h is the host")
    own, rest = parser.parse_known_args(arguments)
    return Options(device=_device(own.devices), node=own.hostname, celery=tuple(rest))


def _device(word: str) -> str | None:
    if word == "auto":
        return None
    if word == "cpu":
        return "cpu"
    if word.isdecimal():
        return f"cuda:{word}"
    raise SettingsError(f"--devices={word!r}: not auto, cpu or the number of one CUDA device")
