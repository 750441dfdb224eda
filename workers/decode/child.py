"""A process that only decodes: ``python -m workers.decode.child FD``, started by ``workers.decode.children``.

It has one socket, to its parent. It reads a request, decodes into the file that the request names, and sends
what it made, until the parent closes the socket. It knows neither store nor broker, and needs no network.
"""

from __future__ import annotations

import logging
import signal
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from epd.contracts.errors import EpdError, Internal
from epd.contracts.media import ItemOptions, Modality
from workers.decode.decode import Rules, audio_track, decode
from workers.limits import DecodeLimits

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Hello:
    """The child is ready."""


@dataclass(frozen=True, slots=True)
class DecodeRequest:
    """Decode a track into ``out``. The ``hold`` of the limits is in the parent."""

    path: Path
    modality: Modality
    rules: Rules
    options: ItemOptions
    limits: DecodeLimits
    out: Path

    def run(self, hold: Callable[[int], None]) -> Any:
        """Do it; as ``workers.decode.decode.decode``."""
        return decode(
            self.path,
            modality=self.modality,
            options=self.options,
            rules=self.rules,
            limits=replace(self.limits, hold=hold),
            out=self.out,
        )


@dataclass(frozen=True, slots=True)
class ProbeRequest:
    """Look for the audio track of a file."""

    path: Path
    limits: DecodeLimits

    def run(self, hold: Callable[[int], None]) -> Any:
        """Do it; as ``workers.decode.decode.audio_track``."""
        return audio_track(self.path, limits=replace(self.limits, hold=hold))


@dataclass(frozen=True, slots=True)
class Hold:
    """The child asks for so many bytes of room; the answer is None, or the error to raise."""

    nbytes: int


@dataclass(frozen=True, slots=True)
class Answer:
    """The result of a request, or its error."""

    value: Any = None
    error: EpdError | None = None


def serve(connection: Connection) -> None:
    """Answer requests until the parent is gone."""

    def hold(nbytes: int) -> None:
        connection.send(Hold(nbytes))
        refusal = connection.recv()
        if refusal is not None:
            raise refusal

    connection.send(Hello())
    while True:
        request = connection.recv()
        try:
            answer = Answer(request.run(hold))
        except EpdError as error:
            answer = Answer(error=error)
        except EOFError:
            raise
        except Exception:
            logger.exception("decoding %s failed", request.path.name)
            answer = Answer(error=Internal("decoding failed; the worker's log says why"))
        connection.send(answer)


def main() -> None:
    """Serve on the inherited socket. Signals for the worker do not end a decode; the parent does."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    logging.basicConfig(format="%(asctime)s %(levelname)s decode-child %(name)s %(message)s")
    try:
        serve(Connection(int(sys.argv[1])))
    except (EOFError, OSError):
        sys.exit(0)


if __name__ == "__main__":
    # Pickles name this module, not ``__main__``.
    from workers.decode.child import main as imported_main

    imported_main()
