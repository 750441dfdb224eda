"""``POST /v1/embeddings/slices``: exactly the rows asked for, or an error that names what is wrong."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
import torch
from httpx2 import Response
from safetensors.torch import load as load_torch

from api.embeddings import slices
from epd.contracts.errors import StoreUnavailable
from epd.contracts.job import PartId
from epd.contracts.media import Modality
from epd.contracts.messages import Wanted
from epd.store.values import Completed
from tests.api_worker_double import rows
from tests.unit.api.rest_kit import Rest

IMAGE, AUDIO, FILM = "c3" * 32, "d4" * 32, "e5" * 32
GONE = "f6" * 32
TRACKS = {IMAGE: (Modality.IMAGE, 5), AUDIO: (Modality.AUDIO, 7), FILM: (Modality.VIDEO, 12)}


def keep(rest: Rest, dtypes: dict[str, str]) -> Rest:
    for key, (track, _) in TRACKS.items():
        wanted = Wanted(key=key, track=track, encoder="eye", encoder_identity="x")
        entry = rest.worker.put(wanted, "e" * 64, dtype=dtypes.get(key, "float32"))
        rest.store.flights.complete([Completed(entry, "0" * 32, PartId(0, track), {})])
    return rest


@pytest.fixture
def kept(rest: Rest) -> Rest:
    return keep(rest, {})


def ask(rest: Rest, *wanted: tuple[str, int, int | None], **fields: Any) -> Response:
    parts = [{"key": key, "start": start, "stop": stop} for key, start, stop in wanted]
    return rest.client.post("/v1/embeddings/slices", json={"slices": parts, **fields})


def test_a_tensor_for_each_slice_in_the_order_asked_for(kept: Rest) -> None:
    wanted = [(FILM, 3, 12), (IMAGE, 0, None), (FILM, 0, 1), (AUDIO, 6, 7), (IMAGE, 0, None)]
    answer = ask(kept, *wanted)
    assert (answer.status_code, answer.headers["X-Epd-Rows"]) == (200, "9,5,1,1,5")
    assert int(answer.headers["Content-Length"]) == len(answer.content)
    tensors = safetensors.numpy.load(answer.content)
    assert sorted(tensors) == ["0", "1", "2", "3", "4"]
    for number, (key, start, stop) in enumerate(wanted):
        np.testing.assert_array_equal(tensors[str(number)], rows(key, TRACKS[key][1])[start:stop])
    header = json.loads(answer.content[8 : 8 + int.from_bytes(answer.content[:8], "little")])
    assert header["__metadata__"]["0"] == f"{FILM} 3:12"
    assert header["__metadata__"]["1"] == f"{IMAGE} 0:5"


def test_dtypes_may_differ_in_safetensors_and_not_in_raw(rest: Rest) -> None:
    keep(rest, {AUDIO: "bfloat16"})
    both = [(IMAGE, 1, 4), (AUDIO, 2, 5)]
    tensors = load_torch(ask(rest, *both).content)
    assert (tensors["0"].dtype, tensors["1"].dtype) == (torch.float32, torch.bfloat16)
    np.testing.assert_array_equal(tensors["1"].float().numpy(), rows(AUDIO, 7)[2:5])
    refused = ask(rest, *both, format="raw")
    assert (refused.status_code, refused.json()["code"]) == (400, "invalid_request")
    assert "one dtype" in refused.json()["detail"]
    raw = ask(rest, (AUDIO, 2, 5), (AUDIO, 0, 1), format="raw")
    assert (raw.headers["X-Epd-Dtype"], raw.headers["X-Epd-Hidden"]) == ("bfloat16", "8")
    upper = (np.frombuffer(raw.content, "<u2").astype("<u4") << 16).view("<f4").reshape(-1, 8)
    np.testing.assert_array_equal(upper, rows(AUDIO, 7)[[2, 3, 4, 0]])


def test_raw_is_the_rows_in_sequence(kept: Rest) -> None:
    raw = ask(kept, (FILM, 10, None), (IMAGE, 0, 2), format="raw")
    wanted = np.concatenate([rows(FILM, 12)[10:], rows(IMAGE, 5)[:2]])
    np.testing.assert_array_equal(np.frombuffer(raw.content, "<f4").reshape(-1, 8), wanted)
    assert raw.headers["X-Epd-Rows"] == "2,2"


def test_a_missing_embedding_is_named_and_nothing_is_sent(kept: Rest) -> None:
    answer = ask(kept, (IMAGE, 0, None), (GONE, 0, None), (FILM, 0, 1))
    assert (answer.status_code, answer.json()["code"]) == (404, "not_found")
    assert GONE in answer.json()["detail"]
    assert IMAGE not in answer.json()["detail"]
    kept.store.embeddings.path(FILM).unlink()
    assert FILM in ask(kept, (IMAGE, 0, None), (FILM, 0, 1)).json()["detail"]


def test_many_missing_embeddings_are_counted(kept: Rest) -> None:
    answer = ask(kept, *((f"{number:064x}", 0, None) for number in range(20)))
    assert "and 12 more" in answer.json()["detail"]


@pytest.mark.parametrize(
    ("wanted", "status", "why"),
    [
        ((IMAGE, 2, 6), 416, "slices[1]: stop: 6 is past the end of 5 tokens"),
        ((IMAGE, 5, None), 416, "slices[1]: start: 5 is no row of 5 tokens"),
        ((IMAGE, 3, 3), 400, "slices[1]: rows 3:3 are none"),
        ((IMAGE, -1, 3), 400, "slices[1].start"),
        (("x" * 64, 0, None), 400, "slices[1].key"),
    ],
)
def test_a_slice_at_fault_is_named(kept: Rest, wanted: tuple[str, int, int], status: int, why: str) -> None:
    answer = ask(kept, (FILM, 0, 1), wanted)
    assert answer.status_code == status
    assert why in answer.json()["detail"]


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b"{}",
        b'{"slices": []}',
        b'{"slices": [{"key": 5}]}',
        b'{"slices": [{"key": "%s", "rows": 3}]}' % (b"a" * 64),
        b'{"slices": [{"key": "%s", "start": "1"}]}' % (b"a" * 64),
        b'{"slices": [{"key": "%s"}], "format": "npy"}' % (b"a" * 64),
        b'{"slices": [%s]}' % b",".join([b'{"key": "%s"}' % (b"a" * 64)] * 257),
    ],
)
def test_a_malformed_request_is_refused(quiet: Rest, body: bytes) -> None:
    answer = quiet.client.post("/v1/embeddings/slices", content=body)
    assert (answer.status_code, answer.json()["code"]) == (400, "invalid_request"), answer.text


def test_the_bounds_on_bytes(kept: Rest, monkeypatch: pytest.MonkeyPatch) -> None:
    assert kept.client.post("/v1/embeddings/slices", content=b" " * 70_000).status_code == 413
    monkeypatch.setattr(slices, "MAX_BYTES", 12 * 8 * 4)
    assert ask(kept, (FILM, 0, None)).status_code == 200
    answer = ask(kept, (FILM, 0, None), (FILM, 0, 1))
    assert (answer.status_code, answer.json()["code"]) == (413, "media_too_large")


def test_rows_are_pinned_while_they_are_sent(kept: Rest, monkeypatch: pytest.MonkeyPatch) -> None:
    pinned: list[list[str]] = []
    store = type(kept.store.embeddings)
    look_up = store.lookup

    def looked_up(self: Any, keys: list[str], **options: Any) -> Any:
        pinned.append(list(keys))
        assert options["lease"] == 0.0
        return look_up(self, keys, **options)

    monkeypatch.setattr(slices, "PIN_SECONDS", 0.0)  # so that it is renewed with each piece
    monkeypatch.setattr(store, "lookup", looked_up)
    monkeypatch.setattr(store, "pin", lambda _, keys, *__: pinned.append(list(keys)))
    assert ask(kept, (FILM, 0, None), (IMAGE, 0, 1), (FILM, 3, 4)).status_code == 200
    assert pinned == [[FILM, IMAGE], [FILM, IMAGE], [IMAGE, FILM], [FILM]]


def test_nothing_stays_pinned_once_the_answer_is_sent_or_refused(kept: Rest) -> None:
    assert ask(kept, (FILM, 0, None), (IMAGE, 0, 1), (FILM, 3, 4)).status_code == 200
    assert ask(kept, (FILM, 0, None), (IMAGE, 0, 1000)).status_code == 416
    rows = kept.store.embeddings.scan().rows
    assert [row.entry.ref.key for row in rows if row.pinned] == []
    assert {FILM, IMAGE} <= {row.entry.ref.key for row in rows}


def test_the_pins_of_other_readers_stay(kept: Rest) -> None:
    kept.store.embeddings.lookup([FILM], lease=60, holder="another")
    assert ask(kept, (FILM, 0, None), (IMAGE, 0, 1)).status_code == 200
    rows = kept.store.embeddings.scan().rows
    assert [row.entry.ref.key for row in rows if row.pinned] == [FILM]


def test_an_answer_stands_where_pins_cannot_be_ended(kept: Rest, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: Any) -> None:
        raise StoreUnavailable("the store does not answer")

    monkeypatch.setattr(type(kept.store.embeddings), "unpin", fails)
    assert ask(kept, (FILM, 0, None)).status_code == 200
    assert ask(kept, (IMAGE, 0, 1000)).status_code == 416
