"""Errors over HTTP: every failure is ``application/problem+json`` (RFC 9457) with a stable ``code``."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable, Mapping, Sequence
from http import HTTPStatus
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import BaseModel, ConfigDict, ValidationError
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from epd.contracts.errors import EpdError, Internal, InvalidRequest

logger = logging.getLogger(__name__)

PROBLEM_TYPE = "application/problem+json"
#: Where the OpenAPI document has its models.
SCHEMAS = "#/components/schemas/{model}"

#: Seconds in ``Retry-After`` where a 429 or 503 does not say otherwise.
_DEFAULT_RETRY_AFTER = 1.0
_MAX_NAMED_FIELDS = 5
_MAX_DETAIL = 1000
_CODES = {404: "not_found", 405: "method_not_allowed", 413: "media_too_large"}
_MEANINGS = {
    400: "The request is malformed or names what the encoder does not take",
    403: "A source's scheme is refused",
    404: "No such model, job, embedding or upload",
    409: "Another one of that id is there, with other content",
    413: "Over a limit of bytes",
    415: "Not a media type that is decoded here",
    416: "start or stop is past the tokens of the embedding",
    422: "The media is empty",
    429: "Too much is waiting; retry after Retry-After seconds",
    503: "The store, the blob space or an encoder is not available; retry later",
}


class Problem(BaseModel):
    """The body of every error. ``retryable`` says whether the same request may succeed later."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "type": "urn:epd:error:invalid_request",
                    "title": "Bad Request",
                    "status": 400,
                    "detail": "items[0].url: field required",
                    "code": "invalid_request",
                    "retryable": False,
                }
            ]
        }
    )

    type: str
    title: str
    status: int
    detail: str
    code: str
    retryable: bool


def problems(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """The documented errors of a route, each as problem+json; ``create_app`` adds the model."""
    content = {PROBLEM_TYPE: {"schema": {"$ref": SCHEMAS.format(model=Problem.__name__)}}}
    return {status: {"description": _MEANINGS[status], "content": content} for status in statuses}


def install_error_handlers(app: FastAPI) -> None:
    """Answer every exception of the application as a problem."""
    app.add_exception_handler(EpdError, _on_epd_error)
    app.add_exception_handler(RequestValidationError, _on_validation_error)
    app.add_exception_handler(HTTPException, _on_http_exception)
    app.add_exception_handler(ClientDisconnect, _client_disconnected)


def seconds_text(seconds: float) -> str:
    """A time as error messages spell it: "1 second", "0.5 seconds"."""
    return f"{seconds:g} second{'' if seconds == 1 else 's'}"


def problem_response(error: EpdError, *, reasons: Sequence[str] = ()) -> JSONResponse:
    """The response for an error of the tree; ``reasons`` are details that take more than one sentence."""
    headers = {}
    if error.status in (429, 503):
        headers["Retry-After"] = str(math.ceil(error.retry_after or _DEFAULT_RETRY_AFTER))
    return _response(
        error.status,
        error.code,
        error.message,
        retryable=error.retryable,
        headers=headers,
        extra={"reasons": list(reasons)} if reasons else None,
    )


def invalid_request(error: ValidationError) -> InvalidRequest:
    """The error of a body or of parameters that do not fit their model."""
    return _invalid_fields(error.errors(include_url=False, include_context=False, include_input=False))


def _invalid_fields(
    errors: Iterable[Mapping[str, Any]], *, skip: frozenset[str] = frozenset()
) -> InvalidRequest:
    """One error that names the first fields at fault; the caller's values are never repeated.

    Args:
        errors: Errors as pydantic lists them.
        skip: Leading parts of a location that mean nothing to the caller.
    """
    sentences = [f"{_place(item['loc'], skip)}: {_message(item)}" for item in errors]
    more = len(sentences) - _MAX_NAMED_FIELDS
    text = "; ".join(sentences[:_MAX_NAMED_FIELDS])
    return InvalidRequest(f"{text}; and {more} more" if more > 0 else text)


def _message(item: Mapping[str, Any]) -> str:
    text = str(item["msg"]).removeprefix("Value error, ")
    return text[:1].lower() + text[1:200]


def _place(loc: Iterable[str | int], skip: frozenset[str]) -> str:
    place = ""
    for part in loc:
        if isinstance(part, int):
            place += f"[{part}]"
        elif place or part not in skip:
            place += f".{part[:64]}" if place else part[:64]
    return place or "body"


def _on_epd_error(_: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, EpdError)
    return problem_response(error)


def _on_validation_error(_: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, RequestValidationError)
    return problem_response(_invalid_fields(error.errors(), skip=frozenset({"query", "path", "header"})))


def _on_http_exception(_: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, HTTPException)
    code = _CODES.get(error.status_code, "invalid_request" if error.status_code < 500 else Internal.code)
    return _response(error.status_code, code, str(error.detail), headers=error.headers)


def _client_disconnected(_: Request, error: Exception) -> JSONResponse:
    """The response to a client that left before its request was complete; a proxy in between may read it."""
    logger.info("the client left before its request was complete")
    return problem_response(InvalidRequest("the request is incomplete"))


def _response(
    status: int,
    code: str,
    detail: str,
    *,
    retryable: bool = False,
    headers: Mapping[str, str] | None = None,
    extra: Mapping[str, Any] | None = None,
) -> JSONResponse:
    problem = Problem(
        type=f"urn:epd:error:{code}",
        title=_title(status),
        status=status,
        detail=detail.encode("utf-8", "replace").decode()[:_MAX_DETAIL],
        code=code,
        retryable=retryable,
    )
    return JSONResponse(
        problem.model_dump() | dict(extra or {}),
        status_code=status,
        headers=dict(headers or {}),
        media_type=PROBLEM_TYPE,
    )


def _title(status: int) -> str:
    return HTTPStatus(status).phrase
