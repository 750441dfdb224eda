"""``POST /v1/embeddings/slices``."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request, Response

from api.body import whole_body
from api.docs import body_of, problems
from api.services import Served, Services
from api.slice_formats import slices_headers, slices_prefix
from api.slices import MAX_BODY, PinnedRows, SlicesRequest, parse_slices, pinned_rows, slice_pieces
from api.streamed import StreamedResponse

router = APIRouter(tags=["embeddings"])

_KINDS = ("application/vnd.safetensors", "application/octet-stream")
_BODIES: dict[str, Any] = {"content": {kind: {"schema": {"type": "string"}} for kind in _KINDS}}


@router.post(
    "/v1/embeddings/slices",
    response_class=Response,
    responses=problems(400, 404, 413, 416, 429, 503) | {200: _BODIES},
    openapi_extra=body_of("SlicesRequest"),
)
async def post_slices(request: Request, services: Served) -> Response:
    """Rows of several embeddings in one answer; all of them, or an error that names what is missing.

    ``safetensors`` has a tensor for each slice, named "0", "1", ... in the order asked for; ``raw`` has the
    rows alone, one slice behind the other. X-Epd-Rows tells the rows of each.
    """
    async with whole_body(request, limit=MAX_BODY, budget=services.bodies) as body:
        wanted = parse_slices(body)
    pinned, prefix = await services.call(_checked, services, wanted)
    parts = pinned.parts
    headers = slices_headers(parts, wanted.format, len(prefix) + sum(part.nbytes for part in parts))
    return StreamedResponse(slice_pieces(services, prefix, pinned), headers)


def _checked(services: Services, wanted: SlicesRequest) -> tuple[PinnedRows, bytes]:
    """The rows, and what goes before them."""
    pinned = pinned_rows(services.store.embeddings, wanted.slices)
    return pinned, slices_prefix(pinned.parts, wanted.format)
