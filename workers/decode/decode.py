"""The entry to decoding: from a media file to raw bytes in a blob file and a typed description of them."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from epd.contracts.embedding import AudioRules, VideoRules
from epd.contracts.errors import Internal, UnsupportedMedia
from epd.contracts.media import BlobRef, ItemOptions, Modality, RawAudio, RawFrames, RawImage
from workers.decode.animation import sample_animation
from workers.decode.audio import decode_audio
from workers.decode.image import Scratch, read_image
from workers.decode.probe import AudioTrack, probe
from workers.decode.sampling import effective_rules
from workers.decode.sniff import Kind, sniff
from workers.decode.video import sample_video
from workers.limits import DecodeLimits, write_all

Rules = AudioRules | VideoRules | None


def decode(
    path: Path,
    *,
    modality: Modality,
    options: ItemOptions,
    rules: Rules,
    limits: DecodeLimits,
    out: Path,
    scratch: Scratch | None = None,
) -> RawImage | RawFrames | RawAudio:
    """Decode ``path`` as ``modality`` and write its raw bytes to ``out``, which is removed on any error.

    Args:
        path: the media file.
        modality: the track to decode; ``AUDIO`` for the audio of a video too.
        options: the item's own options, which override ``rules``.
        rules: those of the encoder card: ``VideoRules`` for a video, ``AudioRules`` for audio, None for an
            image.
        limits: its ``hold`` is called with the size of the output, in bytes, before anything is written,
            and again if the header was wrong.
        out: a new file whose name becomes the blob's.
        scratch: memory for the pixels of an image, for a caller that decodes one after another.

    Returns:
        Shapes, times and size of what was written.

    Raises:
        CallerFault: the media is empty, corrupt, too large or of another type.
        DecodeTimeout: decoding took longer than ``limits.timeout``.
        BlobSpaceFull: space for the output cannot be reserved.
    """
    done = False
    try:
        sniffed = _checked_type(path, modality)
        raw = _as_modality(path, sniffed, modality, rules, options, limits=limits, out=out, scratch=scratch)
        done = True
        return raw
    finally:
        if not done:
            out.unlink(missing_ok=True)


def audio_track(path: Path, *, limits: DecodeLimits) -> AudioTrack | None:
    """The audio track of a file, None if it has none, as an animation. Raises as ``sniff`` and ``probe``."""
    sniffed = sniff(path)
    if Modality.AUDIO not in sniffed.carries:
        return None
    return probe(path, sniffed=sniffed, limits=limits).audio


def _checked_type(path: Path, modality: Modality) -> Kind:
    sniffed = sniff(path)
    if modality not in sniffed.carries:
        raise UnsupportedMedia(f"{sniffed.mime} cannot be read as {modality.value}")
    return sniffed


def _as_modality(
    path: Path,
    sniffed: Kind,
    modality: Modality,
    rules: Rules,
    options: ItemOptions,
    *,
    limits: DecodeLimits,
    out: Path,
    scratch: Scratch | None,
) -> RawImage | RawFrames | RawAudio:
    if modality is Modality.IMAGE:
        return _image(path, sniffed, limits, out, scratch)
    if modality is Modality.VIDEO and isinstance(rules, VideoRules):
        return _frames(path, sniffed, effective_rules(rules, options), limits, out)
    if modality is Modality.AUDIO and isinstance(rules, AudioRules):
        return _audio(path, sniffed, rules, limits, out)
    raise Internal(f"decode rules {type(rules).__name__} given for {modality.value}")


def _image(path: Path, sniffed: Kind, limits: DecodeLimits, out: Path, scratch: Scratch | None) -> RawImage:
    image = read_image(
        path,
        format_name=sniffed.format,
        max_pixels=limits.image_pixels,
        hold=limits.hold,
        scratch=scratch,
    )
    height, width, _ = image.pixels.shape
    with out.open("wb") as sink:
        write_all(sink, np.ascontiguousarray(image.pixels).reshape(-1).data)
    return RawImage(
        blob=_blob(out),
        height=height,
        width=width,
        original_size=image.original_size,
        source_frames=image.frames,
    )


def _frames(path: Path, sniffed: Kind, rules: VideoRules, limits: DecodeLimits, out: Path) -> RawFrames:
    sample = sample_animation if sniffed.modality is Modality.IMAGE else sample_video
    taken = sample(path, sniffed=sniffed, rules=rules, limits=limits, out=out)
    # As sample_fps in qwen-vl-utils: the frames taken over the whole duration, not over their own distances.
    sampled_fps = taken.frames / taken.duration if taken.duration > 0 else rules.fps
    return RawFrames(
        blob=_blob(out),
        frames=taken.frames,
        height=taken.size[1],
        width=taken.size[0],
        original_size=taken.original_size,
        timestamps=taken.timestamps,
        duration=taken.duration,
        sampled_fps=sampled_fps,
        source_frames=taken.source_frames,
        partial=taken.partial,
    )


def _audio(path: Path, sniffed: Kind, rules: AudioRules, limits: DecodeLimits, out: Path) -> RawAudio:
    audio = decode_audio(path, sniffed=sniffed, sample_rate=rules.sample_rate, limits=limits, out=out)
    return RawAudio(
        blob=_blob(out), samples=audio.samples, sample_rate=rules.sample_rate, partial=audio.partial
    )


def _blob(out: Path) -> BlobRef:
    return BlobRef(name=out.name, nbytes=out.stat().st_size)
