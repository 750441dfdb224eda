"""Embedding keys: equal for equal inputs in every process, different if any field that matters changes."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from epd import identity
from epd.contracts.embedding import AudioRules, EncoderCard, ImageRules, VideoRules
from epd.contracts.media import AudioTrackMode, ItemOptions, Modality
from tests.paths import ROOT

CARD = EncoderCard(
    name="tower",
    family="qwen2_5_vl",
    modalities=(Modality.IMAGE, Modality.VIDEO),
    hidden=64,
    dtype="bfloat16",
    weights_digest="a" * 64,
    preprocess_revision="1",
    options=("min_pixels", "max_pixels", "fps", "min_frames", "max_frames"),
    image=ImageRules(min_pixels=3136, max_pixels=1000_000),
    video=VideoRules(fps=2, min_frames=4, max_frames=768, frame_multiple=2, min_pixels=100, max_pixels=5000),
    audio=AudioRules(sample_rate=16_000),
)
DIGEST = identity.content_digest(b"bytes")


def key_of(
    card: EncoderCard = CARD,
    options: ItemOptions | None = None,
    digest: str = DIGEST,
    track: Modality = Modality.VIDEO,
) -> str:
    return identity.embedding_key(digest=digest, track=track, card=card, options=options or ItemOptions())


def test_a_content_digest_is_the_sha256_of_the_bytes() -> None:
    # FIPS 180-2, appendix B.1
    assert identity.content_digest(b"abc").startswith("ba7816bf8f01cfea414140de5dae2223")
    assert identity.content_digest(memoryview(b"abc")) == identity.content_digest(b"abc")


@pytest.mark.parametrize(
    "change",
    [
        {"name": "other"},
        {"family": "dinov2"},
        {"weights_digest": "b" * 64},
        {"dtype": "float32"},
        {"preprocess_revision": "2"},
    ],
)
@pytest.mark.parametrize("track", list(Modality))
def test_each_field_of_the_encoder_changes_the_key(change: dict[str, str], track: Modality) -> None:
    other = CARD.model_copy(update=change)
    assert key_of(other, track=track) != key_of(track=track)
    assert identity.encoder_identity(other) != identity.encoder_identity(CARD)


@pytest.mark.parametrize(
    "change",
    [
        {"fps": 4.0},
        {"min_frames": 5},
        {"max_frames": 5},
        {"frame_multiple": 4},
        {"min_pixels": 101},
        {"max_pixels": 5001},
        {"max_pixels": None},
    ],
)
def test_each_rule_of_the_card_changes_the_key(change: dict[str, float]) -> None:
    assert CARD.video is not None
    other = CARD.model_copy(update={"video": CARD.video.model_copy(update=change)})
    assert key_of(other) != key_of()
    assert key_of(other, track=Modality.IMAGE) == key_of(track=Modality.IMAGE)


def test_the_sample_rate_changes_the_key_of_audio_alone() -> None:
    other = CARD.model_copy(update={"audio": AudioRules(sample_rate=24_000)})
    assert key_of(other, track=Modality.AUDIO) != key_of(track=Modality.AUDIO)
    assert key_of(other) == key_of()


@pytest.mark.parametrize(
    "options",
    [
        {"min_pixels": 1},
        {"max_pixels": 4999},
        {"fps": 1.0},
        {"min_frames": 1},
        {"max_frames": 767},
    ],
)
def test_each_option_changes_the_key(options: dict[str, float]) -> None:
    assert key_of(options=ItemOptions.model_validate(options)) != key_of()


def test_content_track_and_revisions_change_the_key(monkeypatch: pytest.MonkeyPatch) -> None:
    keys = {key_of(), key_of(digest=identity.content_digest(b"other"))}
    keys |= {key_of(track=track) for track in Modality}
    assert len(keys) == 4
    for name in ("KEY_VERSION", "DECODE_REVISION"):
        monkeypatch.setattr(identity, name, "changed")
        keys.add(key_of())
    assert len(keys) == 6


@pytest.mark.parametrize(
    ("track", "options"),
    [
        (Modality.IMAGE, {"fps": 1.0, "max_frames": 5}),
        (Modality.AUDIO, {"fps": 1.0, "max_pixels": 5}),
        (Modality.VIDEO, {"audio_track": AudioTrackMode.NONE}),
    ],
)
def test_an_option_without_effect_changes_no_key(track: Modality, options: dict[str, object]) -> None:
    assert key_of(options=ItemOptions.model_validate(options), track=track) == key_of(track=track)


def test_an_option_that_the_family_does_not_take_changes_no_key() -> None:
    fixed = CARD.model_copy(update={"options": ()})
    assert key_of(fixed, ItemOptions(max_pixels=5)) == key_of(fixed)


def test_stating_the_default_gives_the_same_key() -> None:
    assert key_of(options=ItemOptions(max_pixels=5000, fps=2.0)) == key_of()
    assert key_of(options=ItemOptions(max_pixels=4000)) == key_of(options=ItemOptions(max_pixels=4000, fps=2))


def test_what_does_not_change_an_output_changes_no_key() -> None:
    other = CARD.model_copy(update={"device": "cuda:0", "parameters": 7, "hidden": 64})
    assert key_of(other) == key_of()


@given(st.lists(st.text(max_size=4), max_size=4), st.lists(st.text(max_size=4), max_size=4))
def test_different_lists_of_fields_never_give_one_key(one: list[str], other: list[str]) -> None:
    same = identity._framed_digest(one) == identity._framed_digest(other)
    assert same is (one == other)


@pytest.mark.parametrize(
    ("url", "same"),
    [
        ("HTTP://Example.COM/a", "http://example.com/a"),
        ("http://example.com:80/a", "http://example.com/a"),
        ("https://example.com:443", "https://example.com/"),
        ("http://example.com/a#part", "http://example.com/a"),
        ("http://[::1]:80/a", "http://[::1]/a"),
    ],
)
def test_equal_urls_have_one_source_key(url: str, same: str) -> None:
    assert identity.source_key(url) == identity.source_key(same)


@pytest.mark.parametrize(
    "url",
    [
        "https://example.com/a",
        "http://example.com/A",
        "http://example.com/a/",
        "http://example.com/a?b",
        "http://example.com:8080/a",
        "http://example.org/a",
    ],
)
def test_other_urls_have_another(url: str) -> None:
    assert identity.source_key(url) != identity.source_key("http://example.com/a")


def test_three_processes_build_the_same_key() -> None:
    """CAC-04: nothing in a key may hang on the hash seed of a process."""
    program = (
        "from tests.unit.epd.test_identity import key_of, DIGEST, identity\n"
        "from epd.contracts.media import ItemOptions\n"
        "print(key_of(options=ItemOptions(fps=1.5, max_pixels=100, min_frames=2)), DIGEST)"
    )
    outputs = set()
    for seed in ("0", "1", "random"):
        environment = os.environ | {"PYTHONHASHSEED": seed, "PYTHONPATH": str(ROOT)}
        done = subprocess.run(
            [sys.executable, "-c", program],
            check=False,
            env=environment,
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert done.returncode == 0, done.stderr
        outputs.add(done.stdout)
    here = key_of(options=ItemOptions(fps=1.5, max_pixels=100, min_frames=2))
    assert outputs == {f"{here} {DIGEST}\n"}
