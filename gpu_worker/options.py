"""The command line of ``python -m gpu_worker``: its own options; the others go to ``celery worker``."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass

from epd.contracts.errors import SettingsError

_DEFAULT_NAME = "gpu@%h"
#: More processes than this on the CPUs of one machine are a typo.
_MAX_PROCESSES = 64


@dataclass(frozen=True, slots=True)
class Options:
    """The parsed command line.

    Attributes:
        devices: torch device names, or None for the config's; each has a process of its own.
        node: a Celery node name, with placeholders.
        celery: further options of ``celery worker``.
        share: how many processes divide the CPU cores, including this one.
    """

    devices: tuple[str | None, ...]
    node: str
    celery: tuple[str, ...]
    share: int = 1

    @property
    def device(self) -> str | None:
        """The first device, which is the only one of a process that encodes."""
        return self.devices[0]


def parse_options(arguments: Sequence[str]) -> Options:
    """Parse the command line.

    Raises:
        SettingsError: ``--devices`` or ``--share`` is invalid.
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
    share = _count(own.share, f"--share={own.share!r}: not a number from 1 to {_MAX_PROCESSES}")
    return Options(devices=_devices(own.devices), node=own.hostname, celery=tuple(rest), share=share)


def child_arguments(options: Options) -> list[list[str]]:
    """Give the command line of one worker per device; each has a numbered node name."""
    share = str(options.share * len(options.devices))
    names = [_numbered(options.node, number) for number in range(len(options.devices))]
    return [
        ["--devices", _device_word(device), "-n", name, "--share", share, *options.celery]
        for device, name in zip(options.devices, names, strict=True)
    ]


def _devices(words: str) -> tuple[str | None, ...]:
    if words == "auto":
        return (None,)
    if words == "cpu":
        return ("cpu",)
    kind, colon, count = words.partition(":")
    if kind == "cpu" and colon:
        message = f"--devices={words!r}: not cpu:N with N from 1 to {_MAX_PROCESSES}"
        return ("cpu",) * _count(count, message)
    numbers = words.split(",")
    if not all(number.isascii() and number.isdecimal() for number in numbers):
        raise SettingsError(f"--devices={words!r}: not auto, cpu, cpu:N or numbers of CUDA devices (0,1)")
    devices = tuple(f"cuda:{int(number)}" for number in numbers)
    if len(set(devices)) < len(devices):
        raise SettingsError(f"--devices={words!r}: names a device twice")
    return devices


def _count(word: str, message: str) -> int:
    if not (word.isascii() and word.isdecimal() and 1 <= int(word) <= _MAX_PROCESSES):
        raise SettingsError(message)
    return int(word)


def _device_word(device: str | None) -> str:
    return "auto" if device is None else device.removeprefix("cuda:")


def _numbered(node: str, number: int) -> str:
    """``gpu@host`` gives ``gpu0@host``. After a digit comes a hyphen: ``gpu2@host`` gives ``gpu2-0@host``."""
    name, at, host = node.partition("@")
    return f"{name}{'-' if name[-1:].isdecimal() else ''}{number}{at}{host}"
