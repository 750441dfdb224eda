"""``/v1/embeddings`` as a collection: list what is cached, and remove it one by one or by encoder."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

from fastapi import APIRouter, Path, Query, Response

from api.errors import problems
from api.services import Served, Services
from epd.contracts.errors import InvalidRequest, NotFound
from epd.contracts.media import Modality
from epd.contracts.responses import CachedAnswer, CachePageAnswer, RemovedAnswer, Tier
from epd.store.values import CacheRow

router = APIRouter(tags=["embeddings"])

#: Entries that one call reads, or removes, at most (a server returns a small index whole: up to 512).
MOST = 1000

Key = Annotated[str, Path(pattern=r"^[0-9a-f]{64}$", description="64 hex digits")]
Cursor = Annotated[str | None, Query(pattern=r"^[0-9a-f]{1,64}$", description="of the call before")]
Limit = Annotated[int, Query(ge=1, le=MOST, description="about how many entries to look at")]
EncoderName = Annotated[str | None, Query(min_length=1, max_length=64, description="of this encoder alone")]
Digest = Annotated[
    str | None,
    Query(pattern=r"^[0-9a-f]{4,64}$", description="of this revision alone: the digest's first digits"),
]


@router.get("/v1/embeddings", responses=problems(400, 503))
async def list_embeddings(
    services: Served,
    cursor: Cursor = None,
    limit: Limit = 100,
    encoder: EncoderName = None,
    modality: Modality | None = None,
    tier: Tier | None = None,
) -> CachePageAnswer:
    """What is cached, about ``limit`` entries a call, in no order; pass the answer's ``cursor`` for more."""
    page = await services.call(services.store.embeddings.scan, cursor, limit=limit)
    rows = [
        row
        for row in page.rows
        if encoder in (None, row.entry.metadata.encoder)
        and modality in (None, row.entry.metadata.modality)
        and (tier is None or tier in row.tiers)
    ]
    return CachePageAnswer(
        embeddings=tuple(_answer(row) for row in rows), cursor=page.cursor, note=_note(services, encoder)
    )


@router.delete("/v1/embeddings/{key}", status_code=204, responses=problems(400, 404, 503))
async def delete_embedding(services: Served, key: Key) -> Response:
    """Remove one embedding. Who is reading it may finish, until its lease ends."""
    if not await services.call(services.store.embeddings.forget, [key]):
        raise NotFound("no such embedding, or it was evicted")
    return Response(status_code=204)


@router.delete("/v1/embeddings", responses=problems(400, 503))
async def delete_embeddings(
    services: Served,
    encoder: EncoderName = None,
    weights_digest: Digest = None,
    everything: Annotated[bool, Query(alias="all", description="of every encoder")] = False,
    cursor: Cursor = None,
    limit: Limit = MOST,
) -> RemovedAnswer:
    """Remove the embeddings of an encoder, or of one revision of it; a call reads about ``limit`` entries.

    Call again with the answer's ``cursor`` until there is none. Without ``encoder``, ``all=true`` is needed.
    """
    if encoder is None and not everything:
        raise InvalidRequest("encoder: name one, or say all=true")

    def is_selected(row: CacheRow) -> bool:
        metadata = row.entry.metadata
        return encoder in (None, metadata.encoder) and (metadata.weights_digest or "").startswith(
            weights_digest or ""
        )

    removed = await services.call(_remove, services, cursor, limit, is_selected)
    return removed.model_copy(update={"note": _note(services, encoder)})


def _note(services: Services, encoder: str | None) -> str | None:
    """A note on an unknown encoder, not an error: one that left the config may have left embeddings."""
    known = services.config.encoders
    if encoder is None or encoder in known:
        return None
    return f"no encoder is named {encoder!r}; known: {', '.join(known)}"


def _remove(
    services: Services, cursor: str | None, limit: int, is_selected: Callable[[CacheRow], bool]
) -> RemovedAnswer:
    page = services.store.embeddings.scan(cursor, limit=limit)
    keys = [row.entry.ref.key for row in page.rows if is_selected(row)]
    removed = services.store.embeddings.forget(keys) if keys else 0
    return RemovedAnswer(removed=removed, cursor=page.cursor)


def _answer(row: CacheRow) -> CachedAnswer:
    ref, metadata = row.entry.ref, row.entry.metadata
    return CachedAnswer(
        key=ref.key,
        modality=metadata.modality,
        encoder=metadata.encoder,
        weights_digest=metadata.weights_digest,
        shape=ref.shape,
        dtype=ref.dtype,
        nbytes=ref.nbytes,
        tiers=row.tiers,
        used_at=row.used_at,
        pinned=row.pinned,
    )
