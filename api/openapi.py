"""What the OpenAPI document says beyond the routes' own signatures."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI
from pydantic.json_schema import models_json_schema

from api.embeddings.slices import SlicesRequest
from api.encode.request import EncodeRequest
from api.errors import PROBLEM_TYPE, Problem
from epd.contracts.handoff import HandoffRequest

_REFERENCES = "#/components/schemas/{model}"
_MEANINGS = {
    400: "The request is malformed or names what the encoder does not take",
    403: "A source's scheme is refused",
    404: "No such model, job, embedding or upload",
    409: "Another one of that id is there, and says something else",
    413: "Over a limit of bytes",
    415: "Not a media type that is decoded here",
    416: "start or stop is past the tokens of the embedding",
    422: "The media is empty",
    429: "Too much waits; come again after Retry-After seconds",
    503: "The store, the blob space or an encoder is not available; come again",
}


def body_of(name: str) -> dict[str, Any]:
    """``openapi_extra`` of a route that reads its body by hand; ``install_schemas`` adds the model."""
    schema = {"$ref": _REFERENCES.format(model=name)}
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": schema}}}}


def problems(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """The documented errors of a route, each as problem+json."""
    schema = {"$ref": _REFERENCES.format(model=Problem.__name__)}
    content = {PROBLEM_TYPE: {"schema": schema}}
    return {status: {"description": _MEANINGS[status], "content": content} for status in statuses}


def install_schemas(app: FastAPI) -> None:
    """Add the models that routes only refer to: bodies that are read by hand, and the problem."""
    made = app.openapi

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            _, extra = models_json_schema(
                [
                    (EncodeRequest, "validation"),
                    (SlicesRequest, "validation"),
                    (HandoffRequest, "validation"),
                    (Problem, "serialization"),
                ],
                ref_template=_REFERENCES,
            )
            schemas = made().setdefault("components", {}).setdefault("schemas", {})
            for name, schema in extra["$defs"].items():
                schemas.setdefault(name, schema)
        return made()

    app.openapi = openapi  # type: ignore[method-assign]
