"""The tables behind ``workers.sniff``: magic bytes and what they stand for.

Sources: the format specifications (PNG, GIF, TIFF 6, RIFF, ISO base media and its registered brands at
MP4RA, EBML, Ogg, ID3v2, FLV, ASF, MPEG-2 systems). Formats that can start programs or name other files
(EPS, PDF, playlists, SVG) are left out on purpose.
"""

from __future__ import annotations

from typing import NamedTuple

from epd.contracts.media import Modality


class Kind(NamedTuple):
    """A format. ``format`` is Pillow's format name, or ffmpeg's demuxer name.

    ``modality`` is what the container is usually for; ``carries`` is all that it may hold.
    """

    modality: Modality
    mime: str
    format: str
    carries: frozenset[Modality]

    @classmethod
    def image(cls, mime: str, name: str, *, moves: bool = False) -> Kind:
        """An image for Pillow; one that can move may be read as a video as well."""
        carries = {Modality.IMAGE, Modality.VIDEO} if moves else {Modality.IMAGE}
        return cls(Modality.IMAGE, mime, name, frozenset(carries))

    @classmethod
    def audio(cls, mime: str, name: str) -> Kind:
        """A sound file for ffmpeg. A picture inside is cover art, never a video."""
        return cls(Modality.AUDIO, mime, name, frozenset({Modality.AUDIO}))

    @classmethod
    def video(cls, mime: str, name: str) -> Kind:
        """A container for ffmpeg that may hold pictures, sound or both."""
        return cls(Modality.VIDEO, mime, name, frozenset({Modality.VIDEO, Modality.AUDIO}))


MAGIC: tuple[tuple[bytes, Kind], ...] = (
    (b"\x89PNG\r\n\x1a\n", Kind.image("image/png", "PNG", moves=True)),
    (b"\xff\xd8\xff", Kind.image("image/jpeg", "JPEG")),
    (b"GIF87a", Kind.image("image/gif", "GIF", moves=True)),
    (b"GIF89a", Kind.image("image/gif", "GIF", moves=True)),
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
    b"WEBP": Kind.image("image/webp", "WEBP", moves=True),
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
#: Boxes that start a QuickTime file without a file type box.
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
