"""One track of an item through the decoder, into a raw blob."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from epd.contracts.card import AudioRules, EncoderCard, VideoRules
from epd.contracts.errors import EncoderNotReady
from epd.contracts.media import BlobRef, Item, Modality, RawAudio, RawFrames, RawImage
from epd.contracts.messages import Wanted
from epd.contracts.metadata import AudioTrackInfo
from epd.identity import encoder_identity
from epd.store.values import BlobKind
from tasks.flow.context import Context
from workers.decode import audio_track, decode
from workers.limits import decode_limits


def audio_track_of(context: Context, path: Path) -> AudioTrackInfo:
    """Whether a video file has sound, and its seconds by the header. An animation has none.

    Raises:
        CallerFault: the file is no media, or cannot be read.
    """
    track = audio_track(path, limits=decode_limits(context.settings))
    if track is None:
        return AudioTrackInfo(present=False)
    return AudioTrackInfo(present=True, seconds=track.duration)


def decode_track(context: Context, path: Path, item: Item, wanted: Wanted) -> RawImage | RawFrames | RawAudio:
    """Decode one track into a new raw blob, which is removed again when decoding fails.

    Its room is held when the header is read, before anything is decoded.

    Raises:
        CallerFault: the media is at fault.
        DecodeTimeout, BlobSpaceFull: as the decoder says.
        EncoderNotReady: the encoder changed since the key was built, so its rules may differ.
    """
    card = _card_of(context, wanted)
    with context.store.blobs.create(BlobKind.RAW) as (name, file):
        raw = decode(
            path,
            modality=wanted.track,
            options=item.options,
            rules=_rules(card, wanted.track),
            limits=replace(decode_limits(context.settings), hold=context.hold_for(name)),
            out=Path(file.name),
        )
    return raw.model_copy(update={"blob": BlobRef(name=name, nbytes=raw.blob.nbytes)})


def _card_of(context: Context, wanted: Wanted) -> EncoderCard:
    card = context.store.cards.get([wanted.encoder])[0]
    if card is None or encoder_identity(card) != wanted.encoder_identity:
        raise EncoderNotReady(f"encoder {wanted.encoder!r} changed while the item was on its way")
    return card


def _rules(card: EncoderCard, track: Modality) -> AudioRules | VideoRules | None:
    return {Modality.IMAGE: None, Modality.VIDEO: card.video, Modality.AUDIO: card.audio}[track]
