"""Readiness from heartbeats alone: every kind of worker lives and the default model's encoders are warm."""

from __future__ import annotations

from collections.abc import Sequence

from epd.config import Config
from epd.contracts.media import Modality
from epd.store.values import Heartbeat

KINDS = ("fetch", "decode", "encode")


def ready_encoders(beats: Sequence[Heartbeat]) -> set[str]:
    """The encoders that a live and warm GPU worker serves."""
    return {name for beat in beats if beat.kind == "encode" and beat.ready for name in beat.encoders}


def reasons_not_ready(beats: Sequence[Heartbeat], config: Config) -> list[str]:
    """What is missing, as sentences; empty when the stack can serve the default model."""
    alive = {beat.kind for beat in beats if beat.ready}
    reasons = [f"no {kind} worker is alive and ready" for kind in KINDS if kind not in alive]
    name, model = config.model(None)
    needed = {encoder for modality in Modality if (encoder := model.encoder_for(modality)) is not None}
    for encoder in sorted(needed - ready_encoders(beats)):
        reasons.append(f"encoder {encoder} of model {name} is not warm")
    return reasons
