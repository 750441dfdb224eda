"""``POST /v1/media``."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request

from api.body import UPLOAD_SECONDS, body_chunks, stated_length
from api.docs import problems
from api.multipart import boundary_of, file_chunks
from api.services import Served
from api.uploads import store_upload, upload_limit
from epd.contracts.answers import MediaAnswer

router = APIRouter(tags=["media"])

_BINARY = {"type": "string", "format": "binary"}
_FORM = {"type": "object", "properties": {"file": _BINARY}, "required": ["file"]}
_BODY: dict[str, Any] = {
    "required": True,
    "content": {"application/octet-stream": {"schema": _BINARY}, "multipart/form-data": {"schema": _FORM}},
}
#: What a form adds to its one file: boundaries and part headers, in bytes.
_FORM_EXTRA = 64 << 10


@router.post(
    "/v1/media",
    status_code=201,
    responses=problems(400, 413, 422, 503),
    openapi_extra={"requestBody": _BODY},
)
async def post_media(request: Request, services: Served) -> MediaAnswer:
    """Upload a file in a stream, raw or as a form with one file; ``media_id`` is the sha256 of its bytes."""
    limit = upload_limit(services.settings)
    boundary = boundary_of(request.headers.get("content-type"))
    cap = limit if boundary is None else limit + _FORM_EXTRA
    expected = stated_length(request, cap)
    chunks = body_chunks(request, limit=cap, seconds=UPLOAD_SECONDS)
    if boundary is not None:
        chunks = file_chunks(chunks, boundary)
    media_id, blob = await store_upload(services, chunks, expected=expected)
    return MediaAnswer(media_id=media_id, nbytes=blob.nbytes)
