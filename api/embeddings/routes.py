"""``/v1/embeddings/{key}`` and ``/v1/metadata/{key}``."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Header, Path, Query, Request, Response

from api.embeddings.formats import (
    MEDIA_TYPES,
    Form,
    Representation,
    embedding_headers,
    embedding_pieces,
    entity_tag,
    form_of,
    represent,
)
from api.embeddings.slices import (
    MAX_BODY,
    PinnedRows,
    SlicesRequest,
    parse_slices,
    pinned_rows,
    slice_pieces,
    slices_headers,
    slices_prefix,
)
from api.embeddings.streaming import StreamedResponse, map_rows
from api.errors import problems
from api.requests import body_of, whole_body
from api.services import Served, Services
from epd.contracts.embedding import Entry, Metadata
from epd.contracts.errors import NotFound
from epd.store.files.embedding_format import EmbeddingFile

router = APIRouter(tags=["embeddings"])

Key = Annotated[str, Path(pattern=r"^[0-9a-f]{64}$", description="64 hex digits")]
Row = Annotated[int | None, Query(ge=0, le=1 << 40, description="in tokens")]
FormChoice = Annotated[Form | None, Query(description="wins over Accept")]
EntityTag = Annotated[str | None, Header()]

_BODIES: dict[str, Any] = {"content": {kind: {"schema": {"type": "string"}} for kind in MEDIA_TYPES.values()}}
_UNCHANGED: dict[str, Any] = {"description": "Unchanged"}
_RESPONSES = problems(400, 404, 416, 503) | {200: _BODIES, 304: _UNCHANGED}


@router.head("/v1/embeddings/{key}", response_class=Response, responses=_RESPONSES)
@router.get("/v1/embeddings/{key}", response_class=Response, responses=_RESPONSES)
async def get_embedding(
    *,
    request: Request,
    services: Served,
    key: Key,
    start: Row = None,
    stop: Row = None,
    format: FormChoice = None,
    if_none_match: EntityTag = None,
) -> Response:
    """An embedding, or its tokens [start, stop), as safetensors, npy or raw bytes.

    The form is that of ``format``, else of Accept, else safetensors. ``npy`` holds float32 where bfloat16
    is stored. X-Epd-Shape, X-Epd-Dtype and X-Epd-Stored-Dtype describe the body.
    """
    form = format or form_of(request.headers.get("accept"))
    stored, body, rows = await services.call(_open, services, key, form, (start, stop))
    tag = entity_tag(key, body, stored.shape[0])
    headers = embedding_headers(key, stored, body, tag)
    if if_none_match is not None and (tag in if_none_match or if_none_match.strip() == "*"):
        return Response(status_code=304, headers={"ETag": tag, "Vary": "Accept"})
    if request.method == "HEAD":
        return Response(headers=headers)
    return StreamedResponse(embedding_pieces(body, rows), headers)


@router.get("/v1/metadata/{key}", responses=problems(400, 404, 503))
async def get_metadata(services: Served, key: Key) -> Metadata:
    """The Decode-side metadata of an embedding: all that an engine needs, without a byte of media."""
    return (await services.call(_entry, services, key)).metadata


def _entry(services: Services, key: str) -> Entry:
    (entry,) = services.store.embeddings.lookup([key])
    if entry is None:
        raise NotFound("no such embedding, or it was evicted")
    return entry


def _open(
    services: Services, key: str, form: Form, bounds: tuple[int | None, int | None]
) -> tuple[EmbeddingFile, Representation, memoryview]:
    """Look in the index first, so that only whole embeddings are served; then map the rows.

    No pin is needed: the look-up made the embedding the last to be evicted, and a mapping outlives its file.
    A pin would outlive the response, and keep newer embeddings out of a cache that is read as a whole.
    """
    _entry(services, key)
    stored, file = services.store.embeddings.open(key)
    with file:
        body = represent(stored, form, *bounds)
        return stored, body, map_rows(file, body.offset, body.nbytes)


_KINDS = ("application/vnd.safetensors", "application/octet-stream")
_SLICE_BODIES: dict[str, Any] = {"content": {kind: {"schema": {"type": "string"}} for kind in _KINDS}}


@router.post(
    "/v1/embeddings/slices",
    response_class=Response,
    responses=problems(400, 404, 413, 416, 429, 503) | {200: _SLICE_BODIES},
    openapi_extra=body_of("SlicesRequest"),
)
async def post_slices(request: Request, services: Served) -> Response:
    """Rows of several embeddings in one answer; all of them, or an error that names what is missing.

    ``safetensors`` has a tensor for each slice, named "0", "1", ... in the order of the request; ``raw`` has
    the rows alone, one slice after the other. X-Epd-Rows gives the number of rows of each.
    """
    async with whole_body(request, limit=MAX_BODY, budget=services.bodies) as body:
        wanted = parse_slices(body)
    pinned, prefix = await services.call(_checked, services, wanted)
    parts = pinned.parts
    headers = slices_headers(parts, wanted.format, len(prefix) + sum(part.nbytes for part in parts))
    return StreamedResponse(slice_pieces(services, prefix, pinned), headers)


def _checked(services: Services, wanted: SlicesRequest) -> tuple[PinnedRows, bytes]:
    """The rows, and the bytes that precede them."""
    pinned = pinned_rows(services.store.embeddings, wanted.slices)
    return pinned, slices_prefix(pinned.parts, wanted.format)
