"""What a decoding child does with its one socket: it takes requests of its parent and sends what it made.

It knows neither store nor broker, and needs no network.
"""

from __future__ import annotations

import logging
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
