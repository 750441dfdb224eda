"""The format of media, by its bytes alone: file names and declared types are often wrong.

The format is determined once and passed on by name, so that no decoder guesses again: ffmpeg would take a
playlist for a video and open the files that it names.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from epd.contracts.errors import EmptyMedia, UnsupportedMedia
from epd.contracts.media import Modality


class Kind(NamedTuple):
    """A media format.

    Attributes:
        modality: what the container is usually for.
        mime: its media type.
        format: Pillow's name of an image format; otherwise the name of ffmpeg's demuxer.
        carries: all that the container may hold.
    """

    modality: Modality
    mime: str
    format: str
    carries: frozenset[Modality]

    @classmethod
    def image(cls, mime: str, name: str, *, animated: bool = False) -> Kind:
        """An image for Pillow. A format that can be animated may also be read as a video."""
        carries = {Modality.IMAGE, Modality.VIDEO} if animated else {Modality.IMAGE}
        return cls(Modality.IMAGE, mime, name, frozenset(carries))

    @classmethod
    def audio(cls, mime: str, name: str) -> Kind:
        """An audio file for ffmpeg. An image inside is cover art, never a video."""
        return cls(Modality.AUDIO, mime, name, frozenset({Modality.AUDIO}))

    @classmethod
    def video(cls, mime: str, name: str) -> Kind:
        """A container for ffmpeg that may hold video, audio or both."""
        return cls(Modality.VIDEO, mime, name, frozenset({Modality.VIDEO, Modality.AUDIO}))


MAGIC: tuple[tuple[bytes, Kind], ...] = (
    (b"\x89PNG\r\n\x1a\n", Kind.image("image/png", "PNG", animated=True)),
    (b"\xff\xd8\xff", Kind.image("image/jpeg", "JPEG")),
    (b"GIF87a", Kind.image("image/gif", "GIF", animated=True)),
    (b"GIF89a", Kind.image("image/gif", "GIF", animated=True)),
    (b"II*\x00", Kind.image("image/tiff", "TIFF")),
    (b"MM\x00*", Kind.image("image/tiff", "TIFF")),
    (b"BM", Kind.image("image/bmp", "BMP")),
    (b"fLaC", Kind.audio("audio/flac", "flac")),
    (b"ID3", Kind.audio("audio/mpeg", "mp3")),
    (b"#!AMR", Kind.audio("audio/amr", "amr")),
    (b".snd", Kind.audio("audio/basic", "au")),
    (b"caff", Kind.audio("audio/x-caf", "caf")),
    (b"wvpk", Kind.audio("audio/x-wavpack", "wv")),
    (b"FLV\x01", Kind.video("video/x-flv", "flv")),
    (b"\x30\x26\xb2\x75\x8e\x66\xcf\x11", Kind.video("video/x-ms-asf", "asf")),
    (b"\x00\x00\x01\xba", Kind.video("video/mpeg", "mpeg")),
)

RIFF_FORMS: dict[bytes, Kind] = {
    b"WEBP": Kind.image("image/webp", "WEBP", animated=True),
    b"WAVE": Kind.audio("audio/wav", "wav"),
    b"AVI ": Kind.video("video/x-msvideo", "avi"),
}

OGG_AUDIO = Kind.audio("audio/ogg", "ogg")

BRANDS: dict[bytes, Kind] = {
    b"avif": Kind.image("image/avif", "AVIF"),
    b"avis": Kind.image("image/avif", "AVIF"),
    b"M4A ": Kind.audio("audio/mp4", "mov"),
    b"M4B ": Kind.audio("audio/mp4", "mov"),
    b"qt  ": Kind.video("video/quicktime", "mov"),
}
HEIF_BRANDS = frozenset({b"heic", b"heix", b"heim", b"heis", b"hevc", b"hevx", b"mif1", b"msf1"})
#: Boxes with which a QuickTime file without a file type box starts.
MP4_BOXES = frozenset({b"moov", b"mdat", b"wide", b"free", b"skip", b"pnot"})

TEXT_MARKS: tuple[tuple[bytes, str], ...] = (
    (b"<!doctype html", "an HTML page"),
    (b"<html", "an HTML page"),
    (b"<?xml", "an XML document"),
    (b"<", "markup"),
    (b"#extm3u", "a playlist"),
    (b"ffconcat", "a playlist"),
    (b"[playlist]", "a playlist"),
    (b"%pdf", "a PDF document"),
    (b"%!ps", "a PostScript document"),
    (b"{", "a JSON document"),
)


#: First bytes of a file that are looked at.
_HEAD = 4096
#: Bytes of a packet of an MPEG transport stream.
_TS_PACKET = 188


def sniff(path: Path) -> Kind:
    """The format of a file.

    Raises:
        EmptyMedia: the file holds no bytes.
        UnsupportedMedia: its format is unknown or not decoded.
    """
    with path.open("rb") as file:
        return sniff_bytes(file.read(_HEAD))


def sniff_bytes(head: bytes) -> Kind:
    """The format by the first bytes of a file, of which 4096 are enough; raises as ``sniff``."""
    if not head:
        raise EmptyMedia("the media holds no bytes")
    kind = _by_container(head) or _by_magic(head) or _by_frames(head)
    if kind is None:
        raise UnsupportedMedia(_refusal(head))
    return kind


def _by_magic(head: bytes) -> Kind | None:
    return next((kind for magic, kind in MAGIC if head.startswith(magic)), None)


def _by_container(head: bytes) -> Kind | None:
    """Containers whose content is named a few bytes after the start."""
    if head.startswith((b"RIFF", b"RF64")):
        return RIFF_FORMS.get(head[8:12])
    if head.startswith(b"OggS"):
        return OGG_AUDIO if _is_ogg_audio(head) else Kind.video("video/ogg", "ogg")
    if head[4:8] == b"ftyp":
        return _by_brand(head)
    if head[4:8] in MP4_BOXES:
        return Kind.video("video/quicktime", "mov")
    if head.startswith(b"FORM"):
        return Kind.audio("audio/aiff", "aiff") if head[8:12] in {b"AIFF", b"AIFC"} else None
    if head.startswith(b"\x1a\x45\xdf\xa3"):
        return Kind.video("video/webm" if b"webm" in head[:64] else "video/matroska", "matroska")
    return None


def _is_ogg_audio(head: bytes) -> bool:
    # The first packet of the first page starts after 27 bytes and the segment table.
    start = 27 + head[26] if len(head) > 26 else 27
    return head[start:].startswith((b"OpusHead", b"\x01vorbis", b"\x7fFLAC", b"Speex   "))


def _by_brand(head: bytes) -> Kind:
    """ISO base media (ISO/IEC 14496-12, 4.3): by the major brand, then by the compatible ones."""
    size = min(max(int.from_bytes(head[:4], "big"), 16), len(head))
    brands = [head[8:12], *(head[i : i + 4] for i in range(16, size - 3, 4))]
    known = next((BRANDS[brand] for brand in brands if brand in BRANDS), None)
    if known is not None and (known.modality is Modality.IMAGE or brands[0] in BRANDS):
        return known
    if any(brand in HEIF_BRANDS for brand in brands):
        raise UnsupportedMedia("HEIC/HEIF images are not decoded; send JPEG, PNG, WebP or AVIF")
    return Kind.video("video/mp4", "mov")


def _by_frames(head: bytes) -> Kind | None:
    """Formats without a header: MPEG audio frames, ADTS and transport stream packets."""
    if len(head) >= 4 and head[0] == 0xFF and head[1] & 0xE0 == 0xE0:
        if head[1] & 0xF6 == 0xF0:
            return Kind.audio("audio/aac", "aac")
        if head[1] & 0x06 and head[2] >> 4 != 0xF and head[2] & 0x0C != 0x0C:
            return Kind.audio("audio/mpeg", "mp3")
    syncs = head[::_TS_PACKET][:4]
    if len(syncs) > 1 and set(syncs) == {0x47}:
        return Kind.video("video/mp2t", "mpegts")
    return None


def _refusal(head: bytes) -> str:
    """Why these bytes are refused: what they look like, if that is known."""
    text = head.lstrip(b"\xef\xbb\xbf\xff\xfe \t\r\n").lower()
    if b"<svg" in text and text.startswith(b"<"):
        return "SVG images are not decoded; send a raster image"
    for mark, name in TEXT_MARKS:
        if text.startswith(mark):
            return f"{name} is not media"
    return "the bytes are of no known media format"
