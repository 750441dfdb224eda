"""Builds the requests of the client and reads the answers, without any socket.

``Client`` and ``AsyncClient`` only send what is built here, so both behave alike.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar
from urllib.parse import quote, urlencode

import httpx
from pydantic import BaseModel, ConfigDict, ValidationError

from epd.contracts import errors
from epd.contracts.embedding import Metadata
from epd.contracts.errors import EpdError
from epd.contracts.handoff import Handoff, HandoffReceipt, HandoffRequest, Slice
from epd.contracts.responses import (
    CachePageAnswer,
    EventAnswer,
    JobAnswer,
    MediaAnswer,
    ModelsAnswer,
    RemovedAnswer,
    StatusAnswer,
)

T = TypeVar("T")
M = TypeVar("M", bound=BaseModel)

#: Seconds before each retry after a 429 or 503 without Retry-After; there are as many retries as entries.
RETRY_DELAYS = (0.2, 0.5, 1.0, 2.0)
#: The longest that one request waits for its job, in seconds, so that a dead connection is noticed.
ROUND_WAIT = 30.0
#: The special character of request ids that stays unquoted. A quoted ``/`` cannot reach another route.
_ID_SAFE = ":"
#: Statuses in [OK, _END_OF_OK) are successes.
OK = 200
_END_OF_OK = 300
_RETRY_STATUS = frozenset({429, 503})
_LONGEST_RETRY_AFTER = 10.0
_POLL_DELAYS = (0.05, 0.1, 0.2, 0.4)
_LONGEST_POLL = 0.5


class Unreachable(EpdError):
    """No server answers at the client's URL, or the connection broke off."""

    code = "unreachable"
    retryable = True


@dataclass(frozen=True, slots=True)
class Answer:
    """A complete answer of a server. Header names are looked up in any case."""

    status: int
    headers: Mapping[str, str]
    content: bytes


@dataclass(frozen=True, slots=True)
class Call(Generic[T]):
    """One request: what to send, and how to read a successful answer."""

    method: str
    path: str
    read: Callable[[Answer], T]
    json: Any = None
    params: Mapping[str, str] = field(default_factory=dict)

    @property
    def target(self) -> str:
        """The path with its query."""
        return f"{self.path}?{urlencode(self.params)}" if self.params else self.path

    @property
    def body(self) -> bytes | None:
        """The JSON to send, if any."""
        if self.json is None:
            return None
        return json.dumps(self.json, ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode()

    @property
    def headers(self) -> dict[str, str]:
        """The headers that the body needs."""
        return {} if self.json is None else {"Content-Type": "application/json"}


def checked_url(base_url: str) -> httpx.URL:
    """Parse the URL of a server; raises ``InvalidRequest`` when it is not one."""
    try:
        url = httpx.URL(base_url)
    except httpx.InvalidURL as error:
        raise errors.InvalidRequest(f"not a URL: {base_url[:200]!r} ({error})") from error
    if url.scheme not in {"http", "https"} or not url.host:
        raise errors.InvalidRequest(f"not a URL of a server: {base_url[:200]!r}")
    return url


def start_job(
    items: list[dict[str, Any]],
    *,
    model: str | None,
    wait: float,
    priority: str | None,
    deadline: float | None,
) -> Call[JobAnswer]:
    """POST /v1/encode. ``wait`` and ``deadline`` are seconds."""
    optional = {"model": model, "priority": priority, "deadline": deadline}
    body = {"items": items, "wait": wait, **{k: v for k, v in optional.items() if v is not None}}
    return Call("POST", "/v1/encode", _reader(JobAnswer), json=body)


def get_job(job_id: str) -> Call[JobAnswer]:
    """GET /v1/jobs/{id}."""
    return Call("GET", f"/v1/jobs/{job_id}", _reader(JobAnswer))


def cancel_job(job_id: str) -> Call[JobAnswer]:
    """DELETE /v1/jobs/{id}."""
    return Call("DELETE", f"/v1/jobs/{job_id}", _reader(JobAnswer))


def get_metadata(key: str) -> Call[Metadata]:
    """GET /v1/metadata/{key}."""
    return Call("GET", f"/v1/metadata/{key}", _reader(Metadata))


def get_models() -> Call[ModelsAnswer]:
    """GET /v1/models."""
    return Call("GET", "/v1/models", _reader(ModelsAnswer))


def get_status() -> Call[StatusAnswer]:
    """GET /v1/status."""
    return Call("GET", "/v1/status", _reader(StatusAnswer))


def get_embedding(key: str, start: int | None, stop: int | None) -> Call[bytes]:
    """GET /v1/embeddings/{key} as safetensors; ``start`` and ``stop`` are rows."""
    wanted = {"start": start, "stop": stop}
    params = {"format": "safetensors"} | {k: str(v) for k, v in wanted.items() if v is not None}
    return Call("GET", f"/v1/embeddings/{key}", lambda answer: answer.content, params=params)


def list_embeddings(params: Mapping[str, str | None]) -> Call[CachePageAnswer]:
    """GET /v1/embeddings."""
    return Call("GET", "/v1/embeddings", _reader(CachePageAnswer), params=_given(params))


def delete_embedding(key: str) -> Call[None]:
    """DELETE /v1/embeddings/{key}."""
    return Call("DELETE", f"/v1/embeddings/{key}", lambda _: None)


def delete_embeddings(params: Mapping[str, str | None]) -> Call[RemovedAnswer]:
    """DELETE /v1/embeddings."""
    return Call("DELETE", "/v1/embeddings", _reader(RemovedAnswer), params=_given(params))


def _given(params: Mapping[str, str | None]) -> dict[str, str]:
    return {name: value for name, value in params.items() if value is not None}


def get_slices(slices: Sequence[Slice]) -> Call[bytes]:
    """POST /v1/embeddings/slices as safetensors: one tensor per slice, named by its index."""
    body = {"slices": [part.to_document() for part in slices], "format": "safetensors"}
    return Call("POST", "/v1/embeddings/slices", lambda answer: answer.content, json=body)


def put_handoff(request_id: str, handoff: HandoffRequest) -> Call[HandoffReceipt]:
    """PUT /v1/handoff/{request_id}."""
    return Call("PUT", _handoff_path(request_id), _reader(HandoffReceipt), json=handoff.to_document())


def get_handoff(request_id: str, wait: float) -> Call[Handoff]:
    """GET /v1/handoff/{request_id}; ``wait`` is seconds."""
    params = {"wait": f"{wait:g}"} if wait else {}
    return Call("GET", _handoff_path(request_id), _reader(Handoff), params=params)


def delete_handoff(request_id: str) -> Call[None]:
    """DELETE /v1/handoff/{request_id}."""
    return Call("DELETE", _handoff_path(request_id), lambda answer: None)


def _handoff_path(request_id: str) -> str:
    return f"/v1/handoff/{quote(request_id, safe=_ID_SAFE)}"


def read_media(answer: Answer) -> MediaAnswer:
    """The answer of POST /v1/media."""
    return _reader(MediaAnswer)(answer)


def read_events(lines: Iterator[str]) -> Iterator[EventAnswer]:
    """Events from the lines of a text/event-stream; comments and other fields are skipped."""
    for line in lines:
        event = read_event_line(line)
        if event is not None:
            yield event


def read_event_line(line: str) -> EventAnswer | None:
    """The event of one ``data:`` line, None for any other line."""
    if not line.startswith("data:"):
        return None
    return EventAnswer.model_validate_json(line[5:].strip())


def retry_delay(answer: Answer, tries: int) -> float | None:
    """Seconds until a refused request is retried; None when it is not."""
    if answer.status not in _RETRY_STATUS or tries >= len(RETRY_DELAYS):
        return None
    try:
        return min(float(answer.headers["Retry-After"]), _LONGEST_RETRY_AFTER)
    except (KeyError, ValueError):
        return RETRY_DELAYS[tries]


def poll_delay(polls: int) -> float:
    """Seconds before the next poll of a job."""
    return _POLL_DELAYS[polls] if polls < len(_POLL_DELAYS) else _LONGEST_POLL


def raise_for_problem(answer: Answer) -> None:
    """Raise the error of a problem+json answer by its code, and ``EpdError`` for other failures."""
    if OK <= answer.status < _END_OF_OK:
        return
    problem = _Problem.of(answer)
    kind = _ERRORS.get(problem.code, EpdError)
    raise kind(problem.detail or f"HTTP {answer.status}")


class _Problem(BaseModel):
    model_config = ConfigDict(extra="ignore")

    code: str = ""
    detail: str = ""

    @classmethod
    def of(cls, answer: Answer) -> _Problem:
        try:
            return cls.model_validate_json(answer.content)
        except ValidationError:
            text = answer.content[:200].decode(errors="replace")
            return cls(detail=f"HTTP {answer.status}: {text}")


def _reader(kind: type[M]) -> Callable[[Answer], M]:
    def read(answer: Answer) -> M:
        try:
            return kind.model_validate_json(answer.content)
        except ValidationError as error:
            raise Unreachable("the answer is not that of an epd server of this version") from error

    return read


def _error_classes(kind: type[EpdError]) -> Iterator[type[EpdError]]:
    for child in kind.__subclasses__():
        yield from _error_classes(child)
    yield kind


# Leaves come first in the walk, so a code that a parent shares belongs to the parent: the general class.
_ERRORS = {kind.code: kind for kind in _error_classes(EpdError) if kind.__module__ == errors.__name__}
