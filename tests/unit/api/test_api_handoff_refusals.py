"""``/v1/handoff/{request_id}``: what is refused, and what the refusal names."""

from __future__ import annotations

import json

import pytest

from api import handoff as route
from tests.unit.api.rest_kit import AUDIO, HANDOFF_URL, IMAGE, Rest, cache_image_and_audio, handoff_body


@pytest.fixture
def kept(rest: Rest) -> Rest:
    return cache_image_and_audio(rest)


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("", "body"),
        ("[]", "body"),
        ("{}", "items"),
        ('{"items": [{}]}', "items[0].key"),
        ('{"items": [], "colour": 1}', "colour"),
        ('{"items": [], "prompt_tokens": "9"}', "prompt_tokens"),
        ('{"items": [], "extra": {"x": "%s"}}' % ("y" * 5000), "extra: over 4096 bytes"),
        ('{"items": [], "extra": [1]}', "extra"),
        ('{"items": [], "extra": {"x": 123456789012345678901234567890}}', "extra"),
        ('{"items": [], "extra": {"x": "\\ud800"}}', ""),
        ('{"items": [], "extra": {"x": ' + "[" * 1000 + "]" * 1000 + "}}", ""),
        ('{"items": [], "mrope_position_delta": 1e30}', "mrope_position_delta"),
        ('{"items": [], "mrope_position_delta": 123456789012345678901234567890}', "mrope_position_delta"),
        ('{"items": [], "prompt_tokens": 123456789012345678901234567890}', "prompt_tokens"),
        (
            '{"items": [{"key": "' + IMAGE + '", "offset": 99999999999999999999, "length": 1}]}',
            "items[0].offset",
        ),
        ('{"items": [], "extra": {"x": NaN}}', "extra: not JSON: a number that no"),
        ('{"items": [], "extra": {"x": 1e400}}', "extra: not JSON: a number that no"),
        (
            json.dumps(handoff_body((IMAGE, 0, 0))).replace("}]", f', "spans": [[0, {1 << 70}], [9, 1]]}}]'),
            "items[0].spans[0][1]",
        ),
        ('{"items": [' + ",".join(["{}"] * 257) + "]}", "items"),
        (json.dumps(handoff_body((IMAGE, 0, -1))), "items[0].length"),
        (json.dumps({"items": [{"key": IMAGE, "offset": 0, "length": 1, "row": 2}]}), "items[0].row"),
    ],
)
def test_a_malformed_body_is_refused_and_named(quiet: Rest, text: str, named: str) -> None:
    answer = quiet.client.put(HANDOFF_URL, content=text)
    assert (answer.status_code, answer.json()["code"]) == (400, "invalid_request"), answer.text
    assert named in answer.json()["detail"]


@pytest.mark.parametrize(
    ("field", "value", "named"),
    [
        ("hidden", 1 << 64, "items[0].metadata.hidden"),
        ("original_size", [1 << 64, 1], "items[0].metadata.original_size[0]"),
        ("audio_feature_lengths", [3, 1 << 64], "items[0].metadata.audio_feature_lengths[1]"),
        ("prefix_tokens", -1, "items[0].metadata.prefix_tokens"),
        ("encoder", "e" * 5000, "items[0].metadata.encoder"),
        ("video_timestamps", [0, 1e308], ""),
    ],
)
def test_impossible_metadata_is_refused_and_named(kept: Rest, field: str, value: object, named: str) -> None:
    metadata = kept.client.get(f"/v1/metadata/{IMAGE}").json() | {field: value}
    item = {"key": IMAGE, "offset": 0, "length": 5, "metadata": metadata}
    answer = kept.client.put(HANDOFF_URL, json={"items": [item]})
    assert (answer.status_code, named in answer.text) == (400 if named else 201, True), answer.text


def test_wrong_counts_and_overlaps_are_refused(kept: Rest) -> None:
    wrong = kept.client.put(HANDOFF_URL, json=handoff_body((IMAGE, 4, 6)))
    said = "items[0]: 6 placeholders at 4, 5 rows: length may be 5 or 0"
    assert (wrong.status_code, wrong.json()["detail"]) == (400, said)
    overlap = kept.client.put(HANDOFF_URL, json=handoff_body((IMAGE, 4, 5), (AUDIO, 8, 7)))
    assert (overlap.status_code, "overlap" in overlap.json()["detail"]) == (400, True)
    assert kept.client.get(HANDOFF_URL).status_code == 404


ODD_IDS = ["a" * 129, "a b", "a%0ab", "a%0a", "ä", "a*", "%2e%2e%2fjobs", "%2e%2e", "-a"]


@pytest.mark.parametrize("name", ODD_IDS)
def test_an_id_is_short_and_plain(quiet: Rest, name: str) -> None:
    for answer in (quiet.client.get(f"/v1/handoff/{name}"), quiet.client.put(f"/v1/handoff/{name}", json={})):
        assert answer.status_code in {400, 404}, answer.text
        assert answer.json()["code"] in {"invalid_request", "not_found"}


def test_the_body_is_bounded(quiet: Rest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(route, "MAX_BODY", 1000)
    answer = quiet.client.put(HANDOFF_URL, content=b" " * 1001)
    assert (answer.status_code, answer.json()["code"]) == (413, "media_too_large")
    assert quiet.services.bodies.held == 0
