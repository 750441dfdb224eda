"""Media types come from the bytes: every header gives the right type or a refusal, never a crash."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from epd.contracts.errors import EmptyMedia, UnsupportedMedia
from epd.contracts.media import Modality
from workers.decode.sniff import sniff_bytes

BOTH = {Modality.VIDEO, Modality.AUDIO}


def ftyp(major: bytes, *compatible: bytes) -> bytes:
    body = b"ftyp" + major + bytes(4) + b"".join(compatible)
    return (len(body) + 4).to_bytes(4, "big") + body


@pytest.mark.parametrize(
    ("head", "mime", "name"),
    [
        (b"\x89PNG\r\n\x1a\n", "image/png", "PNG"),
        (b"\xff\xd8\xff\xe0", "image/jpeg", "JPEG"),
        (b"GIF89a", "image/gif", "GIF"),
        (b"RIFF\0\0\0\0WEBPVP8 ", "image/webp", "WEBP"),
        (ftyp(b"avif", b"mif1"), "image/avif", "AVIF"),
        (ftyp(b"mif1", b"avif", b"miaf"), "image/avif", "AVIF"),
        (ftyp(b"isom", b"iso2", b"mp41"), "video/mp4", "mov"),
        (ftyp(b"qt  "), "video/quicktime", "mov"),
        (ftyp(b"mp42", b"M4A ", b"isom"), "video/mp4", "mov"),
        (ftyp(b"M4A ", b"isom"), "audio/mp4", "mov"),
        (b"\0\0\0\x08wide\0\0\0\x08mdat", "video/quicktime", "mov"),
        (b"\x1a\x45\xdf\xa3\x01\0\0\0\0\0\0\x1f\x42\x82\x84webm", "video/webm", "matroska"),
        (b"RIFF\xff\xff\xff\xffWAVEfmt ", "audio/wav", "wav"),
        (b"RIFF\0\0\0\0AVI LIST", "video/x-msvideo", "avi"),
        (b"ID3\x04", "audio/mpeg", "mp3"),
        (b"\xff\xfb\x90\x64", "audio/mpeg", "mp3"),
        (b"\xff\xf1\x50\x80", "audio/aac", "aac"),
        (b"fLaC", "audio/flac", "flac"),
        (b"FORM\0\0\0\0AIFC", "audio/aiff", "aiff"),
        (b"OggS" + bytes(22) + b"\x01\x13OpusHead", "audio/ogg", "ogg"),
        (b"OggS" + bytes(22) + b"\x01\x2a\x80theora", "video/ogg", "ogg"),
        ((b"\x47" + bytes(187)) * 4, "video/mp2t", "mpegts"),
    ],
)
def test_known_heads(head: bytes, mime: str, name: str) -> None:
    reported = sniff_bytes(head)
    assert (reported.mime, reported.format) == (mime, name)
    assert reported.modality.value == mime.split("/", maxsplit=1)[0]


def test_what_a_container_may_carry() -> None:
    assert sniff_bytes(ftyp(b"isom")).carries == BOTH
    assert sniff_bytes(b"GIF89a").carries == {Modality.IMAGE, Modality.VIDEO}
    assert sniff_bytes(b"ID3\x04").carries == {Modality.AUDIO}


@pytest.mark.parametrize(
    ("head", "says"),
    [
        (b"<!DOCTYPE html><title>Sign in</title>", "HTML"),
        (b"\xef\xbb\xbf \n<html>", "HTML"),
        (b'<?xml version="1.0"?><svg xmlns="x">', "SVG"),
        (b"  <svg/>", "SVG"),
        (b"#EXTM3U\n#EXT-X-VERSION:3", "playlist"),
        (b"ffconcat version 1.0", "playlist"),
        (b"%PDF-1.7", "PDF"),
        (b"%!PS-Adobe", "PostScript"),
        (b'{"error": 1}', "JSON"),
        (ftyp(b"heic", b"mif1"), "HEIC"),
        (ftyp(b"mif1", b"heic"), "HEIC"),
        (b"hello", "no known"),
        (b"\0", "no known"),
    ],
)
def test_refused_heads_are_named(head: bytes, says: str) -> None:
    with pytest.raises(UnsupportedMedia, match=says):
        sniff_bytes(head)


def test_empty_input_is_refused() -> None:
    with pytest.raises(EmptyMedia):
        sniff_bytes(b"")


@given(st.binary(min_size=1, max_size=64))
def test_any_bytes_have_a_type_or_are_refused(head: bytes) -> None:
    for prefix in (b"", b"OggS", b"RIFF", b"\0\0\0\x18ftyp", b"\xff", b"\x47"):
        with contextlib.suppress(UnsupportedMedia):
            assert sniff_bytes(prefix + head).carries
