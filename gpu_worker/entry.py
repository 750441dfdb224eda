"""The index entry of an encoded item: reference and Decode-side metadata from plan and message."""

from __future__ import annotations

from epd.contracts.card import EncoderCard
from epd.contracts.media import RawAudio, RawImage
from epd.contracts.messages import EncodeMessage
from epd.contracts.metadata import EmbeddingRef, Entry, Metadata
from gpu_worker.engine.slot import Encoded


def entry_of(message: EncodeMessage, card: EncoderCard, encoded: Encoded) -> Entry:
    """Build the entry; raises ``ValueError`` where rows, plan and grid disagree."""
    key = message.wanted.key
    ref = EmbeddingRef(
        key=key,
        shape=(encoded.plan.tokens, encoded.hidden),
        dtype=card.dtype,
        nbytes=encoded.rows.nbytes,
    )
    return Entry(ref=ref, metadata=_metadata(message, card, encoded))


def _metadata(message: EncodeMessage, card: EncoderCard, encoded: Encoded) -> Metadata:
    raw, facts = message.raw, encoded.plan.facts
    sound = raw if isinstance(raw, RawAudio) else None
    picture = raw if not isinstance(raw, RawAudio) else None
    return Metadata(
        embedding_key=message.wanted.key,
        content_digest=message.digest,
        modality=message.wanted.track,
        encoder=card.name,
        dtype=card.dtype,
        token_count=encoded.plan.tokens,
        hidden=encoded.hidden,
        grid_thw=facts.grid_thw,
        merge_size=facts.merge_size,
        prefix_tokens=facts.prefix_tokens,
        second_per_grid_ts=facts.second_per_grid_ts,
        video_timestamps=facts.video_timestamps,
        audio_feature_lengths=facts.audio_feature_lengths,
        audio_seconds=sound.samples / sound.sample_rate if sound else None,
        deepstack_levels=facts.deepstack_levels,
        original_size=picture.original_size if picture else None,
        source_frames=picture.source_frames if picture else None,
        partial=not isinstance(raw, RawImage) and raw.partial,
        audio=message.audio,
        weights_digest=card.weights_digest,
        source_bytes=message.source_bytes,
    )
