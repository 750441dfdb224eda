"""The command line of ``python -m gpu_worker``: its own options, and the rest for the Celery worker."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass

from epd.contracts.errors import SettingsError

_DEFAULT_NAME = "gpu@%h"
#: More processes than this on one machine's CPUs are a typing error.
_MOST_ON_CPU = 64


@dataclass(frozen=True, slots=True)
class Options:
    """What one command asks for.

    ``devices`` are torch device names, or None for what the config says; one process each. ``node`` is a
    Celery node name. ``share`` is how many processes divide the CPU cores, this one among them.
    """

    devices: tuple[str | None, ...]
    node: str
    celery: tuple[str, ...]
    share: int = 1

    @property
    def device(self) -> str | None:
        """The device of a worker that has one."""
        return self.devices[0]


def parse_options(arguments: Sequence[str]) -> Options:
    """Read the command line.

    Raises:
        SettingsError: ``--devices`` or ``--share`` is not understood.
    """
    parser = argparse.ArgumentParser(
        prog="python -m gpu_worker",
        description="The batching encode worker. Further options are those of `celery worker`.",
        allow_abbrev=False,
    )
    parser.add_argument(
        "--devices",
        default="auto",
        help="auto (what the config says), cpu or a CUDA number; 0,1,... or cpu:2 for one process each",
    )
    parser.add_argument("-n", "--hostname", default=_DEFAULT_NAME, help="Celery node name; %%h is the host")
    parser.add_argument("--share", default="1", help="how many processes divide the CPU cores with this one")
    own, rest = parser.parse_known_args(arguments)
    share = _count(own.share, f"--share={own.share!r}: not a number from 1 to {_MOST_ON_CPU}")
    return Options(devices=_devices(own.devices), node=own.hostname, celery=tuple(rest), share=share)


def child_arguments(options: Options) -> list[list[str]]:
    """For each device the command line of a worker that has this one alone, named by its number."""
    share = str(options.share * len(options.devices))
    return [
        ["--devices", _word(device), "-n", _numbered(options.node, number), "--share", share, *options.celery]
        for number, device in enumerate(options.devices)
    ]


def _devices(words: str) -> tuple[str | None, ...]:
    if words == "auto":
        return (None,)
    if words == "cpu":
        return ("cpu",)
    kind, colon, count = words.partition(":")
    if kind == "cpu" and colon:
        message = f"--devices={words!r}: not cpu:N with N from 1 to {_MOST_ON_CPU}"
        return ("cpu",) * _count(count, message)
    numbers = words.split(",")
    if not all(number.isascii() and number.isdecimal() for number in numbers):
        raise SettingsError(f"--devices={words!r}: not auto, cpu, cpu:N or numbers of CUDA devices (0,1)")
    devices = tuple(f"cuda:{int(number)}" for number in numbers)
    if len(set(devices)) < len(devices):
        raise SettingsError(f"--devices={words!r}: names a device twice")
    return devices


def _count(word: str, message: str) -> int:
    if not (word.isascii() and word.isdecimal() and 1 <= int(word) <= _MOST_ON_CPU):
        raise SettingsError(message)
    return int(word)


def _word(device: str | None) -> str:
    return "auto" if device is None else device.removeprefix("cuda:")


def _numbered(node: str, number: int) -> str:
    """``gpu@host`` to ``gpu0@host``; a name that ends in a digit gets a hyphen first: ``gpu2-0@host``."""
    name, at, host = node.partition("@")
    return f"{name}{'-' if name[-1:].isdecimal() else ''}{number}{at}{host}"
