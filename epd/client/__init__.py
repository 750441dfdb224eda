"""The Python client of the REST API: ``Client``, and ``AsyncClient`` with the same methods.

    from epd.client import Client

    with Client("http://127.0.0.1:8000") as epd:
        job = epd.encode(["photo.jpg", "https://example.org/talk.mp4"])
        rows = epd.embedding(job.items[0].embedding.key)      # numpy [tokens, hidden]

Prefill and Decode use ``HandoffRequest``, ``Placement``, ``Handoff`` and ``Slice`` with it, and two functions
on prompts: ``split_by_offset`` and ``position_delta``.
"""

from epd.client.asynchronous import AsyncClient
from epd.client.blocking import Client
from epd.client.calls import Unreachable
from epd.client.prompt import Split, position_delta, split_by_offset
from epd.contracts.handoff import Handoff, HandoffRequest, Placement, Slice

__all__ = [
    "AsyncClient",
    "Client",
    "Handoff",
    "HandoffRequest",
    "Placement",
    "Slice",
    "Split",
    "Unreachable",
    "position_delta",
    "split_by_offset",
]
