"""Content digests, embedding keys and source keys. No other module builds one.

Each key is the sha256 over fields with their lengths, so two different lists of fields never give the same
bytes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from urllib.parse import urlsplit, urlunsplit

from epd.contracts.embedding import EncoderCard
from epd.contracts.media import ItemOptions, Modality

#: To be increased when the layout of the key changes.
KEY_VERSION = "1"

#: To be increased when CPU decoding changes an output: orientation, alpha, downmix or choice of frames.
DECODE_REVISION = "1"

_PIXEL_OPTIONS = frozenset({"min_pixels", "max_pixels"})
_TRACK_OPTIONS = {
    Modality.IMAGE: _PIXEL_OPTIONS,
    Modality.VIDEO: _PIXEL_OPTIONS | {"fps", "min_frames", "max_frames"},
    Modality.AUDIO: frozenset[str](),
}


def content_digest(data: bytes | memoryview) -> str:
    """sha256 hex of raw bytes."""
    return hashlib.sha256(data).hexdigest()


def encoder_identity(card: EncoderCard) -> str:
    """sha256 hex over all that can make two encoders differ in output for the same media and options."""
    return _framed_digest(
        ["encoder", card.name, card.family, card.weights_digest, card.dtype, card.preprocess_revision]
    )


def embedding_key(*, digest: str, track: Modality, card: EncoderCard, options: ItemOptions) -> str:
    """The key of one embedding: sha256 hex over content, track, encoder and effective options."""
    effective = effective_options(card, track, options)
    fields = ["embedding", KEY_VERSION, DECODE_REVISION, digest, str(track), encoder_identity(card)]
    for name in sorted(effective):
        fields += [name, effective[name]]
    return _framed_digest(fields)


def effective_options(card: EncoderCard, track: Modality, options: ItemOptions) -> Mapping[str, str]:
    """The options that apply to a track: the caller's where given, else those of the card."""
    rules = {Modality.IMAGE: card.image, Modality.VIDEO: card.video, Modality.AUDIO: card.audio}[track]
    effective = {} if rules is None else rules.model_dump(exclude_none=True)
    given = options.model_dump(exclude_none=True, include=applicable_options(card, track))
    return {name: repr(value) for name, value in (effective | given).items()}


def applicable_options(card: EncoderCard, track: Modality) -> set[str]:
    """The names of the item options that change the output of this encoder for this track."""
    return set(card.options) & _TRACK_OPTIONS[track]


def segment_key(*, encoder: str, media: str, shape: Sequence[int], target: Sequence[int], digest: str) -> str:
    """The key of a segment's rows: sha256 hex over all that they depend on.

    ``encoder`` is the encoder's identity. ``media`` and ``shape`` say how to read the bytes with this
    ``digest``: samples and their rate, or frames, height and width. ``target`` is the size that the whole
    item is resized to. The options of an item act only through ``target`` and through the bytes.
    """
    sizes = [",".join(map(str, numbers)) for numbers in (shape, target)]
    return _framed_digest(["segment", KEY_VERSION, encoder, media, *sizes, digest])


def source_key(url: str) -> str:
    """sha256 hex of the canonical URL: scheme and host in lower case, default port and fragment dropped."""
    return _framed_digest(["source", _canonical(url)])


def download_key(url: str, modality: Modality) -> str:
    """The key of a download's flight. Limits depend on the media type, so each type has its own flight."""
    return _framed_digest(["download", str(modality), _canonical(url)])


def _canonical(url: str) -> str:
    parts = urlsplit(url)
    host = (parts.hostname or "").lower()
    default = {"http": 80, "https": 443}.get(parts.scheme.lower())
    port = "" if parts.port in (None, default) else f":{parts.port}"
    netloc = f"[{host}]{port}" if ":" in host else f"{host}{port}"
    return urlunsplit((parts.scheme.lower(), netloc, parts.path or "/", parts.query, ""))


def _framed_digest(fields: Iterable[str]) -> str:
    hasher = hashlib.sha256()
    for field in fields:
        data = field.encode()
        hasher.update(len(data).to_bytes(8, "big"))
        hasher.update(data)
    return hasher.hexdigest()
