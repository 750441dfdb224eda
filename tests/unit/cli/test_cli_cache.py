"""``epd cache``: its requests and its output."""

from __future__ import annotations

import json
from collections.abc import Callable

import httpx
import pytest
from typer.testing import CliRunner

from epd.cli import cache
from epd.cli.main import typer_app
from epd.client import Client
from epd.client.calls import Answer
from epd.contracts.errors import InvalidRequest
from epd.contracts.media import Modality
from epd.contracts.responses import (
    CachedAnswer,
    CachePageAnswer,
    CacheTotals,
    EncoderAnswer,
    ModelsAnswer,
    RemovedAnswer,
    StatusAnswer,
    Tier,
    TierStats,
)

ROWS = [
    CachedAnswer(
        key=f"{number:064x}",
        modality=Modality.IMAGE,
        encoder="eye",
        weights_digest="ab" * 32,
        shape=(4, 8),
        dtype="float32",
        nbytes=128,
        tiers=(Tier.L1, Tier.L2),
        used_at=1.8e9,
        pinned=number == 1,
    )
    for number in range(5)
]
STATUS = StatusAnswer(
    workers=(),
    queues=(),
    cache_entries=3,
    cache_bytes=1 << 20,
    cache_limit=4 << 20,
    l2=TierStats(entries=9, nbytes=5 << 20, limit=8 << 20),
    cache_totals=CacheTotals(
        hits_l1=6, hits_l2=3, misses=1, evicted_l1=7, dropped=5, demotions=9, promotions=2, corrupt=1
    ),
    blob_bytes=0,
    blob_limit=1,
)
MODELS = ModelsAnswer(
    models=(),
    encoders=tuple(EncoderAnswer(name=name, family="dinov2", ready=True) for name in ("ear", "eye")),
)

Run = Callable[..., str]


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[httpx.Request]:
    """A server that answers from what is above, and the requests that reached it."""
    requests: list[httpx.Request] = []

    def answer(request: httpx.Request) -> httpx.Response:
        requests.append(request)
        if request.url.path == "/v1/models":
            return httpx.Response(200, text=MODELS.model_dump_json())
        if request.url.path == "/v1/status":
            return httpx.Response(200, text=STATUS.model_dump_json())
        if request.url.params.get("encoder") in {"dino", "ear"}:
            nothing = CachePageAnswer(embeddings=()) if request.method == "GET" else RemovedAnswer(removed=0)
            return httpx.Response(200, text=nothing.model_dump_json())
        if request.method == "GET":
            second = request.url.params.get("cursor") == "7"
            page = CachePageAnswer(
                embeddings=tuple(ROWS[3:] if second else ROWS[:3]), cursor=None if second else "7"
            )
            return httpx.Response(200, text=page.model_dump_json())
        if request.url.path == "/v1/embeddings":
            first = "cursor" not in request.url.params
            return httpx.Response(
                200, text=RemovedAnswer(removed=2, cursor="7" if first else None).model_dump_json()
            )
        known = any(request.url.path.endswith(row.key) for row in ROWS)
        problem = {"code": "not_found", "detail": "no such embedding"}
        return httpx.Response(204) if known else httpx.Response(404, json=problem)

    def connect(url: str | None, *, timeout: float) -> Client:
        client = Client("http://server", timeout=timeout)
        client._transport = Server()  # type: ignore[assignment]
        return client

    class Server:
        def send(self, method: str, target: str, **_: object) -> Answer:
            found = answer(httpx.Request(method, f"http://server{target}"))
            return Answer(found.status_code, found.headers, found.content)

        def close(self) -> None:
            """There is nothing to close."""

    monkeypatch.setattr(cache, "connect", connect)
    return requests


def _run(*arguments: str, code: int = 0, answer: str = "") -> str:
    done = CliRunner().invoke(typer_app, ["cache", *arguments], input=answer)
    assert done.exit_code == code, done.output
    return done.output


def test_ls_goes_through_all_pages(asked: list[httpx.Request]) -> None:
    lines = _run("ls", "--json", "--encoder", "eye", "--tier", "l2", "--modality", "image").splitlines()
    assert [json.loads(line)["key"] for line in lines] == [row.key for row in ROWS]
    assert [request.url.params.get("cursor") for request in asked] == [None, "7"]
    assert dict(asked[0].url.params) == {"encoder": "eye", "modality": "image", "tier": "l2", "limit": "100"}


def test_ls_stops_at_its_limit(asked: list[httpx.Request]) -> None:
    assert len(_run("ls", "--json", "--limit", "2").splitlines()) == 2
    assert len(asked) == 1
    assert "--limit shows more than 2" in _run("ls", "--limit", "2").replace("\n", " ")


def test_ls_shows_a_table(asked: list[httpx.Request], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    text = _run("ls")
    assert ROWS[0].key in text
    assert "l1+l2 pinned" in text
    assert "abababababab" in text


def test_ls_in_a_pipe_prints_whole_keys_one_a_line(
    asked: list[httpx.Request], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    lines = _run("ls").rstrip().splitlines()
    assert [line.split()[0] for line in lines[2:]] == [row.key for row in ROWS]
    assert {len(line.split()) for line in lines[2:]} == {
        11,
        12,
    }  # every column; sizes and dates are two words
    assert "removed 5" in _run("rm", *(line.split()[0] for line in lines[2:]))


def test_an_unknown_encoder_is_reported(asked: list[httpx.Request]) -> None:
    for command in (["ls"], ["ls", "--json"], ["clear", "--yes"]):
        done = CliRunner().invoke(typer_app, ["cache", *command, "--encoder", "dino"])
        assert done.exit_code == 0
        assert done.stderr == "nothing found, and no encoder is named 'dino'; known: ear, eye\n"


def test_a_known_encoder_without_entries_is_not_reported(asked: list[httpx.Request]) -> None:
    done = CliRunner().invoke(typer_app, ["cache", "ls", "--encoder", "ear"])
    assert (done.exit_code, done.stderr) == (0, "")


def test_stat_shows_sizes_ratio_and_moves(asked: list[httpx.Request]) -> None:
    text = _run("stat")
    assert "cache: 3 embeddings, 1.0 MiB of 4.0 MiB" in text
    assert "cache on L2: 9 embeddings, 5.0 MiB of 8.0 MiB" in text
    assert "hit ratio: 90.0%: 9 hits (3 in L2), 1 misses" in text
    assert "evicted: 7 from L1, 0 from L2, 5 of them dropped from the cache; 0 removed" in text
    assert "; 1 damaged files deleted" in text
    assert "moved: 9 to L2, 2 back to L1, 0 failed" in text
    assert json.loads(_run("stat", "--json"))["cache_totals"]["demotions"] == 9


def test_rm_reports_missing_keys(asked: list[httpx.Request]) -> None:
    assert "removed 2" in _run("rm", ROWS[0].key, ROWS[1].key)
    assert [request.method for request in asked] == ["DELETE", "DELETE"]
    text = _run("rm", "f" * 64, ROWS[1].key, code=1)
    assert "no such embedding" in text
    assert "removed 1" in text


def test_clear_asks_first_and_follows_all_pages(asked: list[httpx.Request]) -> None:
    _run("clear", answer="n\n", code=1)
    assert asked == []
    nobody = CliRunner().invoke(typer_app, ["cache", "clear"])  # standard input at its end
    assert isinstance(nobody.exception, InvalidRequest)
    assert "--yes" in nobody.exception.message
    assert asked == []
    assert "removed 4" in _run("clear", "--encoder", "eye", "--revision", "abab", "--yes")
    assert dict(asked[0].url.params) == {"encoder": "eye", "weights_digest": "abab"}
    assert "removed 4" in _run("clear", answer="y\n")
    assert asked[-1].url.params["all"] == "true"
