"""The peers' virtual environments, below ``.bench-peers/``: pinned packages, and nothing of epd."""

from __future__ import annotations

import shutil
import subprocess
import venv
from collections.abc import Callable, Sequence
from enum import StrEnum
from pathlib import Path

_ROOT = Path(__file__).parents[2]
_FOLDER = _ROOT / ".bench-peers"
_REQUIREMENTS = Path(__file__).with_name("requirements")
_STAMP = "installed.txt"
_TAIL = 600


class Peer(StrEnum):
    """A server that epd is compared with."""

    LITSERVE = "litserve"
    MOSEC = "mosec"
    INFINITY = "infinity"


class PeerError(RuntimeError):
    """A peer cannot be installed or does not start."""


def interpreter(peer: Peer, say: Callable[[str], None]) -> Path:
    """The Python of a peer's environment, which is made first if it is missing or has other pins.

    Raises:
        PeerError: pip failed.
    """
    folder = _FOLDER / peer
    python = folder / "bin" / "python"
    wanted = requirements(peer)
    stamp = folder / _STAMP
    if stamp.exists() and stamp.read_text(encoding="utf-8") == wanted:
        return python
    say(f"making the environment of {peer} (once; some minutes)")
    shutil.rmtree(folder, ignore_errors=True)
    venv.create(folder, with_pip=True)
    # torch first and alone: as a dependency of another package, pip would take a build for CUDA.
    _install(python, [line for line in wanted.splitlines() if line.startswith("torch==")])
    _install(python, ["-r", str(_REQUIREMENTS / f"{peer}.txt")])
    stamp.write_text(wanted, encoding="utf-8")
    return python


def requirements(peer: Peer) -> str:
    """The pins of a peer, one a line."""
    return (_REQUIREMENTS / f"{peer}.txt").read_text(encoding="utf-8")


def version(peer: Peer, package: str) -> str:
    """The pinned version of a package."""
    pins = dict(line.split("==", 1) for line in requirements(peer).splitlines() if "==" in line)
    return pins[package]


def _install(python: Path, what: Sequence[str]) -> None:
    command = [str(python), "-m", "pip", "install", "--quiet", "--no-input", *what]
    done = subprocess.run(command, cwd=_ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        raise PeerError(f"pip install {' '.join(what)}: {done.stderr[-_TAIL:]}")


def server_command(python: Path, peer: Peer, arguments: Sequence[str]) -> list[str]:
    """The command line of a peer's server."""
    return [str(python), "-m", f"bench.peers.servers.{peer}_server", *arguments]
