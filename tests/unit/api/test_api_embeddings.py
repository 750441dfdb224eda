"""Embeddings in every form and range, read back with the libraries that users have; and metadata."""

from __future__ import annotations

import io

import numpy as np
import pytest
import safetensors.numpy

from epd.contracts.job import PartId
from epd.contracts.media import Modality
from epd.contracts.messages import Wanted
from epd.store.values import Completed
from tests.api_worker_double import TOKENS, rows
from tests.unit.api.rest_kit import MakeRest, Rest

KEY = "c3" * 32
BRAIN = "d4" * 32


@pytest.fixture
def kept(rest: Rest) -> Rest:
    """Two embeddings: float32 of 5 tokens, bfloat16 of 7."""
    for key, track, dtype in ((KEY, Modality.IMAGE, "float32"), (BRAIN, Modality.AUDIO, "bfloat16")):
        wanted = Wanted(key=key, track=track, encoder="eye", encoder_identity="x")
        entry = rest.worker.put(wanted, "e" * 64, dtype=dtype)
        rest.store.flights.complete([Completed(entry, "0" * 32, PartId(0, track), {})])
    return rest


def test_safetensors_is_the_file(kept: Rest) -> None:
    answer = kept.client.get(f"/v1/embeddings/{KEY}")
    assert answer.status_code == 200
    assert answer.headers["ETag"] == f'"{KEY}"'
    assert answer.headers["Content-Length"] == str(len(answer.content))
    assert (answer.headers["X-Epd-Shape"], answer.headers["X-Epd-Dtype"]) == ("5,8", "float32")
    tensors = safetensors.numpy.load(answer.content)
    assert list(tensors) == ["ec_cache"]
    np.testing.assert_array_equal(tensors["ec_cache"], rows(KEY, 5))
    assert answer.content == kept.store.embeddings.path(KEY).read_bytes()


@pytest.mark.parametrize(("start", "stop"), [(None, None), (0, 5), (1, 3), (None, 2), (4, None)])
def test_ranges_in_every_form(kept: Rest, start: int | None, stop: int | None) -> None:
    bounds = {name: value for name, value in (("start", start), ("stop", stop)) if value is not None}
    expected = rows(KEY, 5)[start:stop]
    forms = {}
    for form in ("safetensors", "npy", "raw"):
        forms[form] = kept.client.get(f"/v1/embeddings/{KEY}", params=bounds | {"format": form})
        assert forms[form].headers["X-Epd-Shape"] == f"{len(expected)},8"
        assert int(forms[form].headers["Content-Length"]) == len(forms[form].content)
        assert f'filename="{KEY}.{form}"' in forms[form].headers["Content-Disposition"]  # for curl -OJ
    np.testing.assert_array_equal(safetensors.numpy.load(forms["safetensors"].content)["ec_cache"], expected)
    np.testing.assert_array_equal(np.load(io.BytesIO(forms["npy"].content)), expected)
    raw = np.frombuffer(forms["raw"].content, "<f4").reshape(-1, 8)
    np.testing.assert_array_equal(raw, expected)
    assert len({answer.headers["ETag"] for answer in forms.values()}) == 3


def test_bfloat16_is_widened_for_numpy_only(kept: Rest) -> None:
    npy = kept.client.get(f"/v1/embeddings/{BRAIN}?format=npy&start=2&stop=6")
    assert (npy.headers["X-Epd-Dtype"], npy.headers["X-Epd-Stored-Dtype"]) == ("float32", "bfloat16")
    array = np.load(io.BytesIO(npy.content))
    assert array.dtype == np.float32
    np.testing.assert_array_equal(array, rows(BRAIN, 7)[2:6])
    raw = kept.client.get(f"/v1/embeddings/{BRAIN}?format=raw")
    assert raw.headers["X-Epd-Dtype"] == "bfloat16"
    assert len(raw.content) == 7 * 8 * 2
    upper = (np.frombuffer(raw.content, "<u2").astype("<u4") << 16).view("<f4")
    np.testing.assert_array_equal(upper.reshape(7, 8), rows(BRAIN, 7))


@pytest.mark.parametrize(
    ("accept", "kind"),
    [
        ("*/*", "application/vnd.safetensors"),
        ("application/x-npy", "application/x-npy"),
        ("application/octet-stream", "application/octet-stream"),
        ("text/html, application/x-npy;q=0.5, application/octet-stream;q=0.9", "application/octet-stream"),
        ("application/x-npy;q=bad", "application/vnd.safetensors"),
        ("image/png", "application/vnd.safetensors"),
    ],
)
def test_accept(kept: Rest, accept: str, kind: str) -> None:
    answer = kept.client.get(f"/v1/embeddings/{KEY}", headers={"Accept": accept})
    assert answer.headers["Content-Type"] == kind
    assert answer.headers["Vary"] == "Accept"
    chosen = kept.client.get(f"/v1/embeddings/{KEY}?format=npy", headers={"Accept": accept})
    assert chosen.headers["Content-Type"] == "application/x-npy"


def test_head_says_what_get_says(kept: Rest) -> None:
    for query in ("", "?format=npy", "?format=raw&start=1&stop=2"):
        get = kept.client.get(f"/v1/embeddings/{KEY}{query}")
        head = kept.client.head(f"/v1/embeddings/{KEY}{query}")
        assert head.content == b""
        for name in ("Content-Length", "Content-Type", "ETag", "X-Epd-Shape", "X-Epd-Dtype"):
            assert head.headers[name] == get.headers[name]


def test_unchanged(kept: Rest) -> None:
    tag = kept.client.head(f"/v1/embeddings/{KEY}").headers["ETag"]
    answer = kept.client.get(f"/v1/embeddings/{KEY}", headers={"If-None-Match": f'"x", {tag}'})
    assert (answer.status_code, answer.content) == (304, b"")
    assert kept.client.get(f"/v1/embeddings/{KEY}", headers={"If-None-Match": '"x"'}).status_code == 200


@pytest.mark.parametrize(
    ("query", "status", "code"),
    [
        ("start=5", 416, "rows_not_there"),
        ("stop=6", 416, "rows_not_there"),
        ("start=7&stop=9", 416, "rows_not_there"),
        ("start=3&stop=3", 400, "invalid_request"),
        ("start=4&stop=2", 400, "invalid_request"),
        ("start=9&stop=8", 400, "invalid_request"),
        ("stop=0", 400, "invalid_request"),
        ("start=-1", 400, "invalid_request"),
        ("start=x", 400, "invalid_request"),
        ("stop=1e3", 400, "invalid_request"),
        ("format=gif", 400, "invalid_request"),
    ],
)
def test_bad_bounds(kept: Rest, query: str, status: int, code: str) -> None:
    answer = kept.client.get(f"/v1/embeddings/{KEY}?{query}")
    assert (answer.status_code, answer.json()["code"]) == (status, code)
    if status == 416:
        assert "of 5 tokens" in answer.json()["detail"]


def test_a_range_in_bytes_is_left_alone(kept: Rest) -> None:
    answer = kept.client.get(f"/v1/embeddings/{KEY}", headers={"Range": "bytes=0-9"})
    assert (answer.status_code, answer.headers["Accept-Ranges"]) == (200, "none")
    assert answer.content == kept.store.embeddings.path(KEY).read_bytes()


def test_metadata_lives_with_its_embedding(kept: Rest) -> None:
    metadata = kept.client.get(f"/v1/metadata/{KEY}").json()
    assert (metadata["token_count"], metadata["hidden"], metadata["embedding_key"]) == (5, 8, KEY)
    kept.store.embeddings.path(KEY).unlink()
    for path in ("embeddings", "metadata"):
        assert kept.client.get(f"/v1/{path}/{KEY}").json()["code"] == "not_found"


def test_a_damaged_file_is_not_handed_out(kept: Rest) -> None:
    path = kept.store.embeddings.path(KEY)
    path.write_bytes(path.read_bytes()[:-1])
    assert kept.client.get(f"/v1/embeddings/{KEY}").status_code == 404


def test_reads_leave_no_pin_behind(kept: Rest) -> None:
    assert kept.client.head(f"/v1/embeddings/{KEY}").status_code == 200
    assert kept.client.get(f"/v1/embeddings/{KEY}?start=0&stop=1").status_code == 200
    assert kept.client.get(f"/v1/embeddings/{BRAIN}").status_code == 200
    assert [row.pinned for row in kept.store.embeddings.scan().rows] == [False, False]


def test_what_was_made_last_is_readable_while_all_is_read(
    make_rest: MakeRest, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(TOKENS, Modality.IMAGE, 8192)  # a quarter of L1
    rest = make_rest(embedding_bytes=1 << 20)
    for number in range(12):
        wanted = Wanted(key=f"{number:064x}", track=Modality.IMAGE, encoder="eye", encoder_identity="x")
        entry = rest.worker.put(wanted, "e" * 64, dtype="float32")
        rest.store.flights.complete([Completed(entry, "0" * 32, PartId(0, Modality.IMAGE), {})])
        one = {"slices": [{"key": wanted.key, "start": 0, "stop": 1}]}
        assert rest.client.get(f"/v1/embeddings/{wanted.key}?start=0&stop=1").status_code == 200, number
        assert rest.client.post("/v1/embeddings/slices", json=one).status_code == 200, number
    assert rest.store.embeddings.stats().nbytes <= rest.settings.embedding_bytes
