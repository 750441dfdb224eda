"""The cache over REST: listing pages, removing one key, an encoder, or one revision of an encoder."""

from __future__ import annotations

import time

import httpx
import pytest

from epd.client import AsyncClient, Client
from epd.client.calls import Answer
from epd.contracts.embedding import Entry
from epd.contracts.errors import NotFound
from epd.contracts.job import PartId
from epd.contracts.media import Modality
from epd.contracts.messages import Wanted
from epd.store.values import Completed
from tests.api_worker_double import rows
from tests.unit.api.rest_kit import Rest

#: Key, track, encoder, weights digest.
MADE = [
    ("a1" * 32, Modality.IMAGE, "eye", "a" * 64),
    ("b2" * 32, Modality.VIDEO, "eye", "ab" * 32),
    ("c3" * 32, Modality.AUDIO, "ear", "b" * 64),
]
KEYS = [key for key, *_ in MADE]


@pytest.fixture
def kept(rest: Rest) -> Rest:
    for key, track, encoder, digest in MADE:
        wanted = Wanted(key=key, track=track, encoder=encoder, encoder_identity="x")
        entry = rest.worker.put(wanted, "e" * 64)
        metadata = entry.metadata.model_copy(update={"weights_digest": digest})
        entry = entry.model_copy(update={"metadata": metadata})
        rest.store.flights.complete([Completed(entry, "0" * 32, PartId(0, track), {})])
    return rest


def _listed(rest: Rest, query: str = "") -> list[str]:
    answer = rest.client.get(f"/v1/embeddings?{query}")
    assert answer.status_code == 200, answer.text
    return sorted(row["key"] for row in answer.json()["embeddings"])


def test_a_row_of_the_list(kept: Rest) -> None:
    (row,) = (row for row in kept.client.get("/v1/embeddings").json()["embeddings"] if row["key"] == KEYS[2])
    assert abs(row.pop("used_at") - time.time()) < 60
    assert row == {
        "key": KEYS[2],
        "modality": "audio",
        "encoder": "ear",
        "weights_digest": "b" * 64,
        "shape": [7, 8],
        "dtype": "float32",
        "nbytes": 7 * 8 * 4,
        "tiers": ["l1"],
        "pinned": False,
    }


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("", KEYS),
        ("encoder=eye", KEYS[:2]),
        ("modality=video", KEYS[1:2]),
        ("tier=l2", []),
        ("tier=l1&encoder=ear", KEYS[2:]),
        ("encoder=nobody", []),
    ],
)
def test_filters(kept: Rest, query: str, expected: list[str]) -> None:
    assert _listed(kept, query) == expected


def test_an_encoder_that_is_not_configured_is_noted_and_can_be_cleared(kept: Rest) -> None:
    """``ear`` and ``eye`` are what this config has; another name is a mistake, or an encoder of before."""
    wanted = Wanted(key="d4" * 32, track=Modality.IMAGE, encoder="old", encoder_identity="x")
    entry = kept.worker.put(wanted, "e" * 64)
    kept.store.flights.complete([Completed(entry, "0" * 32, PartId(0, Modality.IMAGE), {})])
    assert kept.client.get("/v1/embeddings?encoder=eye").json().get("note") is None
    answer = kept.client.get("/v1/embeddings?encoder=old").json()
    assert [row["key"] for row in answer["embeddings"]] == ["d4" * 32]
    assert answer["note"].startswith("no encoder is named 'old'; known: ")
    assert "eye" in answer["note"]
    gone = kept.client.delete("/v1/embeddings?encoder=old").json()
    assert (gone["removed"], gone["note"]) == (1, answer["note"])
    assert kept.client.delete("/v1/embeddings?encoder=old").json()["removed"] == 0


def test_pages_come_one_after_the_other(kept: Rest) -> None:
    seen, cursor = [], ""
    while cursor is not None:
        answer = kept.client.get(f"/v1/embeddings?limit=1{cursor and f'&cursor={cursor}'}").json()
        seen += [row["key"] for row in answer["embeddings"]]
        cursor = answer.get("cursor")
    assert sorted(seen) == KEYS


def test_one_key_is_removed_once(kept: Rest) -> None:
    answer = kept.client.delete(f"/v1/embeddings/{KEYS[0]}")
    assert (answer.status_code, answer.content) == (204, b"")
    assert _listed(kept) == KEYS[1:]
    again = kept.client.delete(f"/v1/embeddings/{KEYS[0]}")
    assert (again.status_code, again.json()["code"]) == (404, "not_found")
    assert kept.client.get(f"/v1/embeddings/{KEYS[0]}").status_code == 404
    assert not kept.store.embeddings.path(KEYS[0]).exists()
    assert kept.client.delete("/v1/embeddings/nokey").status_code == 400


def test_an_open_file_stays_readable_after_removal(kept: Rest) -> None:
    """A reader that opened the file by its path, as an engine on the same machine does."""
    assert kept.store.embeddings.pin(KEYS[:1], 60) == [True]
    assert kept.client.delete(f"/v1/embeddings/{KEYS[0]}").status_code == 204
    assert kept.client.get(f"/v1/embeddings/{KEYS[0]}").status_code == 404
    stored, file = kept.store.embeddings.open(KEYS[0])
    with file:
        file.seek(stored.offset)
        assert file.read() == rows(KEYS[0], 5).tobytes()


@pytest.mark.parametrize(
    ("query", "left", "removed"),
    [
        ("encoder=eye", KEYS[2:], 2),
        ("encoder=eye&weights_digest=aaaa", KEYS[1:], 1),
        (f"encoder=eye&weights_digest={'ab' * 32}", [KEYS[0], KEYS[2]], 1),
        ("encoder=eye&weights_digest=beef", KEYS, 0),
        ("encoder=nobody", KEYS, 0),
        ("all=true", [], 3),
        ("all=true&weights_digest=bbbb", KEYS[:2], 1),
    ],
)
def test_an_encoder_or_one_revision_is_removed(kept: Rest, query: str, left: list[str], removed: int) -> None:
    answer = kept.client.delete(f"/v1/embeddings?{query}")
    assert answer.status_code == 200
    assert (answer.json()["removed"], answer.json().get("cursor")) == (removed, None)
    assert _listed(kept) == left


def test_each_call_does_a_bounded_part(kept: Rest) -> None:
    """There are more entries than the server returns at once (``hash-max-listpack-entries``)."""
    (entry,) = kept.store.embeddings.lookup(KEYS[:1])
    assert entry is not None
    made = []
    for number in range(600):
        key = f"{number:064x}"
        ref = entry.ref.model_copy(update={"key": key})
        metadata = entry.metadata.model_copy(update={"embedding_key": key})
        made.append(Completed(Entry(ref=ref, metadata=metadata), "0" * 32, PartId(0, Modality.IMAGE), {}))
    kept.store.flights.complete(made)
    cursor, removed = "", []
    while cursor is not None:
        answer = kept.client.delete(f"/v1/embeddings?all=true&limit=100{cursor}").json()
        removed.append(answer["removed"])
        cursor = f"&cursor={answer['cursor']}" if answer.get("cursor") else None
    assert max(removed) < 300
    assert sum(removed) == 603


@pytest.mark.parametrize(
    "query", ["", "all=false", "weights_digest=aaaa", "encoder=", "encoder=eye&weights_digest=xyz", "limit=0"]
)
def test_nothing_is_removed_by_mistake(kept: Rest, query: str) -> None:
    answer = kept.client.delete(f"/v1/embeddings?{query}")
    assert (answer.status_code, answer.json()["code"]) == (400, "invalid_request")
    assert _listed(kept) == KEYS


@pytest.mark.parametrize("query", ["limit=0", "limit=5000", "cursor=-1", "tier=l3", "modality=smell"])
def test_bad_queries_are_refused(kept: Rest, query: str) -> None:
    assert kept.client.get(f"/v1/embeddings?{query}").json()["code"] == "invalid_request"


def test_status_counts_removals(kept: Rest) -> None:
    kept.client.delete(f"/v1/embeddings/{KEYS[0]}")
    totals = kept.client.get("/v1/status").json()["cache_totals"]
    assert totals["removed"] == 1


def _bridge(rest: Rest) -> httpx.MockTransport:
    """The clients' way to the application under test."""

    def ask(request: httpx.Request) -> httpx.Response:
        answer = rest.client.request(request.method, str(request.url.raw_path, "ascii"))
        return httpx.Response(answer.status_code, content=answer.content)

    return httpx.MockTransport(ask)


class Bridge:
    """The same for the blocking client."""

    def __init__(self, rest: Rest) -> None:
        self._rest = rest

    def send(self, method: str, target: str, **_: object) -> Answer:
        answer = self._rest.client.request(method, target)
        return Answer(answer.status_code, answer.headers, answer.content)

    def close(self) -> None:
        """There is nothing to close."""


def test_the_client_lists_forgets_and_clears(kept: Rest) -> None:
    with Client("http://testserver") as client:
        client._transport = Bridge(kept)  # type: ignore[assignment]
        assert sorted(row.key for row in client.cached(page=1)) == KEYS
        assert [row.key for row in client.cached(encoder="ear")] == KEYS[2:]
        client.forget(KEYS[2])
        with pytest.raises(NotFound):
            client.forget(KEYS[2])
        assert client.clear(encoder="eye", weights_digest="aaaa") == 1
        assert client.clear() == 1
        assert list(client.cached()) == []


async def test_the_asynchronous_client_does_the_same(kept: Rest) -> None:
    async with AsyncClient("http://testserver") as client:
        client._http = httpx.AsyncClient(transport=_bridge(kept), base_url="http://testserver")
        assert sorted([row.key async for row in client.cached(page=1)]) == KEYS
        await client.forget(KEYS[2])
        with pytest.raises(NotFound):
            await client.forget(KEYS[2])
        assert await client.clear(encoder="eye") == 2
