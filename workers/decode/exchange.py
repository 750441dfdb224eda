"""What a worker and its decode child send each other: frozen messages as JSON, one at a time in turn.

A child parses hostile media, so its answers are only data: nothing that it sends is executed.
"""

from __future__ import annotations

import socket
import time
from dataclasses import fields
from typing import Annotated, Any, Literal

from pydantic import Field, TypeAdapter

from epd.contracts import errors
from epd.contracts.embedding import AudioRules, VideoRules
from epd.contracts.errors import EpdError, Internal
from epd.contracts.media import ItemOptions, Modality, RawMedia
from epd.contracts.wire import Wire
from workers.decode.probe import AudioTrack
from workers.limits import DecodeLimits, Hold

#: Bytes of the length in front of each message.
_PREFIX = 4
#: Most bytes of a message. The largest has the times of 4096 frames.
_LARGEST = 1 << 20
_READ = 1 << 16
_LIMITS = tuple(field.name for field in fields(DecodeLimits) if field.name != "hold")

Limits = dict[str, int | float]


class DecodeRequest(Wire):
    """Decode one track of a file, as ``workers.decode.decode.decode``."""

    kind: Literal["decode"] = "decode"
    path: str
    modality: Modality
    options: ItemOptions
    rules: VideoRules | AudioRules | None = None
    limits: Limits
    out: str


class TrackRequest(Wire):
    """Find the audio track of a file, as ``workers.decode.decode.audio_track``."""

    kind: Literal["track"] = "track"
    path: str
    limits: Limits


class Failure(Wire):
    """An error of the error tree, by the name of its class."""

    kind: Literal["failure"] = "failure"
    error: str
    message: str
    retry_after: float | None = None

    @classmethod
    def of(cls, error: EpdError) -> Failure:
        """The message for an error."""
        return cls(error=type(error).__name__, message=error.message, retry_after=error.retry_after)

    def to_error(self) -> EpdError:
        """The error itself."""
        made = getattr(errors, self.error, None)
        if not (isinstance(made, type) and issubclass(made, EpdError)):
            made = Internal
        return made(self.message, retry_after=self.retry_after)


class HoldAnswer(Wire):
    """The answer to ``HoldRequest``: the space is reserved, unless ``refusal`` says why not."""

    kind: Literal["held"] = "held"
    refusal: Failure | None = None


class Hello(Wire):
    """A child has loaded all that it needs."""

    kind: Literal["hello"] = "hello"


class HoldRequest(Wire):
    """Call ``limits.hold`` with this many bytes, while a decode waits."""

    kind: Literal["hold"] = "hold"
    nbytes: int


class Decoded(Wire):
    """The answer to ``DecodeRequest``."""

    kind: Literal["decoded"] = "decoded"
    raw: RawMedia


class Track(Wire):
    """The answer to ``TrackRequest``."""

    kind: Literal["track"] = "track"
    track: AudioTrack | None = None


class Unexpected(Wire):
    """A decode raised what is no error of the error tree."""

    kind: Literal["unexpected"] = "unexpected"
    traceback: str


Request = DecodeRequest | TrackRequest
ToChild = DecodeRequest | TrackRequest | HoldAnswer
ToWorker = Hello | HoldRequest | Decoded | Track | Failure | Unexpected
TO_CHILD: TypeAdapter[ToChild] = TypeAdapter(Annotated[ToChild, Field(discriminator="kind")])
TO_WORKER: TypeAdapter[ToWorker] = TypeAdapter(Annotated[ToWorker, Field(discriminator="kind")])


def limits_of(limits: DecodeLimits) -> Limits:
    """The limits as data, without ``hold``."""
    return {name: getattr(limits, name) for name in _LIMITS}


def limits_from(data: Limits, hold: Hold) -> DecodeLimits:
    """The limits from data, with the ``hold`` of the receiver."""
    given: dict[str, Any] = dict(data)
    return DecodeLimits(**given, hold=hold)


class Channel:
    """One end of a stream socket that carries messages."""

    def __init__(self, end: socket.socket) -> None:
        self._socket = end

    def send(self, message: ToChild | ToWorker, deadline: float | None = None) -> None:
        """Send one message until ``deadline``, in seconds of ``time.monotonic``.

        Raises:
            TimeoutError: the other side does not read.
            OSError: it is gone.
        """
        body = message.model_dump_json().encode()
        self._limit(deadline)
        try:
            self._socket.sendall(len(body).to_bytes(_PREFIX, "big") + body)
        except BlockingIOError:  # what a socket with a timeout of 0 raises
            raise TimeoutError from None

    def receive(self, deadline: float | None = None) -> bytes:
        """Receive one message until ``deadline``, as JSON.

        Raises:
            TimeoutError: the other side sends nothing, or not all of it.
            ConnectionResetError: it has ended without reading what was sent to it.
            EOFError: it has ended.
            ValueError: what it sends is too large.
        """
        data = self._some(deadline)
        while len(data) < _PREFIX:
            data += self._some(deadline)
        end = _PREFIX + int.from_bytes(data[:_PREFIX], "big")
        if end > _LARGEST:
            raise ValueError("the message is too large")
        while len(data) < end:
            data += self._some(deadline)
        return data[_PREFIX:end]

    def _some(self, deadline: float | None) -> bytes:
        self._limit(deadline)
        try:
            data = self._socket.recv(_READ)
        except BlockingIOError:
            raise TimeoutError from None
        if not data:
            raise EOFError
        return data

    def _limit(self, deadline: float | None) -> None:
        self._socket.settimeout(None if deadline is None else max(0.0, deadline - time.monotonic()))

    def close(self) -> None:
        """Close this end; the other side then reads to the end."""
        self._socket.close()
