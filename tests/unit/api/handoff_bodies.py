"""A stack that has an image and a sound, and the handoffs that are put there."""

from __future__ import annotations

from typing import Any

from epd.contracts.job import PartId
from epd.contracts.media import Modality
from epd.contracts.messages import Wanted
from epd.store.values import Completed
from tests.unit.api.rest_kit import Rest

IMAGE, AUDIO = "c3" * 32, "d4" * 32
URL = "/v1/handoff/chatcmpl-9f:1"


def keep(rest: Rest) -> Rest:
    """Put both there; five and seven rows."""
    for key, track in ((IMAGE, Modality.IMAGE), (AUDIO, Modality.AUDIO)):
        wanted = Wanted(key=key, track=track, encoder="eye", encoder_identity="x")
        entry = rest.worker.put(wanted, "e" * 64)
        rest.store.flights.complete([Completed(entry, "0" * 32, PartId(0, track), {})])
    return rest


def body(*items: tuple[str, int, int], **fields: Any) -> dict[str, Any]:
    """A request's body of items: key, offset, length."""
    return {"items": [{"key": key, "offset": at, "length": length} for key, at, length in items], **fields}
