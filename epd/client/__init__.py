"""The Python client of the REST API: ``Client`` and ``AsyncClient``.

from epd.client import Client

with Client("http://127.0.0.1:8000") as epd:
job = epd.encode(["photo.jpg", "https://example.org/talk.mp4"])
rows = epd.embedding(job.items[0].embedding.key)      # numpy [tokens, hidden]

For Prefill and Decode: ``HandoffRequest``, ``Placement`` and ``Handoff``, ``split_by_offset`` and ``Slice``.
"""

from epd.client.asynchronous import AsyncClient
from epd.client.blocking import Client
from epd.client.calls import Unreachable
from epd.client.prompt import Split, split_by_offset
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
    "split_by_offset",
]
