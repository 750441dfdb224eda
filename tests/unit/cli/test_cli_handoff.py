"""``epd handoff``: a table for people, and the JSON that Decode reads."""

from __future__ import annotations

import pytest
from typer.testing import CliRunner

from epd.cli import handoff as command
from epd.cli.main import typer_app
from epd.client import Client
from epd.client.calls import Answer
from epd.contracts.embedding import Metadata
from epd.contracts.handoff import Handoff, HandoffItem
from epd.contracts.media import Modality

pytestmark = pytest.mark.unit


def known(modality: Modality, **more: object) -> Metadata:
    fields = {
        "embedding_key": "ab" * 32,
        "content_digest": "c" * 64,
        "modality": modality,
        "encoder": "[eye]",
    }
    return Metadata.model_validate(fields | {"dtype": "float32", "token_count": 6, "hidden": 8} | more)


HANDOFF = Handoff(
    request_id="r1",
    items=(
        HandoffItem(offset=4, length=6, metadata=known(Modality.IMAGE, grid_thw=(1, 4, 6), merge_size=2)),
        HandoffItem(
            offset=12, length=6, spans=((12, 3), (20, 3)), metadata=known(Modality.VIDEO, grid_thw=(2, 1, 3))
        ),
        HandoffItem(offset=30, length=0, metadata=known(Modality.AUDIO)),
    ),
    mrope_position_delta=-7,
    extra={"seed": 1, "[stop]": []},
)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A server that has one handoff, and what it was asked for."""
    targets: list[str] = []

    class Server:
        def send(self, method: str, target: str, **_: object) -> Answer:
            targets.append(f"{method} {target}")
            return Answer(200, {}, HANDOFF.to_json().encode())

        def close(self) -> None:
            """There is nothing to close."""

    def connect(url: str | None) -> Client:
        client = Client("http://server")
        client._transport = Server()  # type: ignore[assignment]
        return client

    monkeypatch.setattr(command, "connect", connect)
    return targets


def test_the_table_names_places_and_grids(asked: list[str]) -> None:
    done = CliRunner().invoke(typer_app, ["handoff", "r1"])
    assert done.exit_code == 0, done.output
    for text in ("1x4x6", "6 in 2 runs", "audio", "[eye]", "abababababab", "mrope delta -7", "seed, [stop]"):
        assert text in done.output
    assert asked == ["GET /v1/handoff/r1"]


def test_json_is_what_decode_reads(asked: list[str]) -> None:
    done = CliRunner().invoke(typer_app, ["handoff", "a/../b c", "--json", "--wait", "2.5"])
    assert Handoff.from_json(done.output) == HANDOFF
    assert asked == ["GET /v1/handoff/a%2F..%2Fb%20c?wait=2.5"]
