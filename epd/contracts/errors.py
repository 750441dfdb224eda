"""The one error tree. Each class states its stable ``code``, its HTTP status and whether a retry can help.

    EpdError
    ├── CallerFault                          4xx: the request or its media is at fault
    │   ├── InvalidRequest        400  invalid_request
    │   ├── UnknownModel          404  unknown_model
    │   ├── NotFound              404  not_found
    │   ├── UnsupportedMedia      415  unsupported_media
    │   ├── CorruptMedia          422  corrupt_media
    │   ├── EmptyMedia            422  empty_media
    │   ├── NoAudioTrack          422  no_audio_track
    │   ├── MediaTooLarge         413  media_too_large
    │   ├── SourceRefused         403  source_refused
    │   ├── SourceRejected        422  source_rejected      the remote server answered 4xx
    │   ├── RowsNotThere          416  rows_not_there       start or stop is past the embedding's tokens
    │   ├── HandoffConflict       409  handoff_conflict     a different handoff with that request id exists
    │   └── Cancelled             409  cancelled
    ├── SourceFault                          5xx about a remote server, retryable
    │   ├── SourceUnavailable     502  source_unavailable
    │   └── SourceTimeout         504  source_timeout
    ├── Overloaded                429  overloaded           retryable, carries retry_after
    ├── DeadlineExceeded          504  deadline_exceeded    retryable
    ├── ServerFault                          5xx: our own fault
    │   ├── Internal              500  internal
    │   ├── EncodeFailed          500  encode_failed
    │   ├── DecodeTimeout         504  decode_timeout       retryable
    │   ├── WorkerCrashed         500  worker_crashed       retryable
    │   ├── BlobSpaceFull         503  blob_space_full      retryable
    │   ├── BlobMissing           503  blob_missing         retryable; the item is fetched again
    │   ├── EncoderNotReady       503  encoder_not_ready    retryable
    │   └── StoreUnavailable      503  store_unavailable    retryable
    └── SettingsError                         raised at start only; never sent

``api`` turns the status of a class into a response.
"""

from __future__ import annotations

from typing import ClassVar


class EpdError(Exception):
    """Base of every error of this project. ``str(error)`` is safe to show to the caller."""

    code: ClassVar[str] = "internal"
    status: ClassVar[int] = 500
    retryable: ClassVar[bool] = False

    def __init__(self, message: str, *, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.retry_after = retry_after


class CallerFault(EpdError):
    """The request, its source or its media is at fault; the same request fails again."""

    code = "invalid_request"
    status = 400


class InvalidRequest(CallerFault):
    """A field is missing, unknown or out of range."""


class UnknownModel(CallerFault):
    """No model of that name, or the model has no encoder for this media type."""

    code = "unknown_model"
    status = 404


class NotFound(CallerFault):
    """There is no such job, embedding, upload or route."""

    code = "not_found"
    status = 404


class UnsupportedMedia(CallerFault):
    """The bytes have a format that this system does not decode, or not the stated type."""

    code = "unsupported_media"
    status = 415


class CorruptMedia(CallerFault):
    """The format is known but the bytes cannot be decoded."""

    code = "corrupt_media"
    status = 422


class EmptyMedia(CallerFault):
    """The media has no bytes, no frames or no samples."""

    code = "empty_media"
    status = 422


class NoAudioTrack(CallerFault):
    """``audio_track: require`` on a video without one."""

    code = "no_audio_track"
    status = 422


class MediaTooLarge(CallerFault):
    """The media exceeds a limit of bytes, pixels, frames, seconds or tokens."""

    code = "media_too_large"
    status = 413


class SourceRefused(CallerFault):
    """The source's scheme or address is not allowed."""

    code = "source_refused"
    status = 403


class SourceRejected(CallerFault):
    """The source's server answered with a final 4xx, or with something that is not media."""

    code = "source_rejected"
    status = 422


class RowsNotThere(CallerFault):
    """``start`` or ``stop`` is past the last row of the embedding."""

    code = "rows_not_there"
    status = 416


class HandoffConflict(CallerFault):
    """A different handoff with that request id exists."""

    code = "handoff_conflict"
    status = 409


class Cancelled(CallerFault):
    """The caller cancelled the job."""

    code = "cancelled"
    status = 409


class SourceFault(EpdError):
    """The source's server failed; a later try may work."""

    code = "source_unavailable"
    status = 502
    retryable = True


class SourceUnavailable(SourceFault):
    """The connection was refused or reset, the body was short, or every retry got a 5xx."""


class SourceTimeout(SourceFault):
    """The connect, read or total timeout of a download passed."""

    code = "source_timeout"
    status = 504


class Overloaded(EpdError):
    """Admission refused the request; ``retry_after`` says after how many seconds to try again."""

    code = "overloaded"
    status = 429
    retryable = True


class DeadlineExceeded(EpdError):
    """The job's own deadline passed before this item was done."""

    code = "deadline_exceeded"
    status = 504
    retryable = True


class ServerFault(EpdError):
    """Our own fault."""


class Internal(ServerFault):
    """A bug; the log of the worker names it."""


class EncodeFailed(ServerFault):
    """The encoder raised for this item alone."""

    code = "encode_failed"


class DecodeTimeout(ServerFault):
    """Decoding took longer than its limit."""

    code = "decode_timeout"
    status = 504
    retryable = True


class WorkerCrashed(ServerFault):
    """The item was delivered too often to workers that died on it."""

    code = "worker_crashed"
    retryable = True


class BlobSpaceFull(ServerFault):
    """The blob directory has no room left for media bytes."""

    code = "blob_space_full"
    status = 503
    retryable = True


class BlobMissing(ServerFault):
    """A blob that a message names is gone; its item has to be fetched again."""

    code = "blob_missing"
    status = 503
    retryable = True


class EncoderNotReady(ServerFault):
    """No GPU worker has announced this encoder yet, or it changed after the item was admitted."""

    code = "encoder_not_ready"
    status = 503
    retryable = True


class StoreUnavailable(ServerFault):
    """Redis does not answer."""

    code = "store_unavailable"
    status = 503
    retryable = True


class SettingsError(EpdError):
    """A setting or the config file is wrong; the message names key and value."""

    code = "settings"
