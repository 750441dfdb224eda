"""Family ``whisper``: speech to rows for Whisper's decoder.

Audio is cut into windows of 30 s, and each is encoded by itself. A window always gives all of its 1500 rows,
also those of the silence after a short recording. Whisper was trained this way, and its decoder attends to
all of them, so Decode gets exactly the rows of transformers' encoder. ``audio_feature_lengths`` are the valid
mel frames of each window.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from epd.contracts.embedding import EncoderCard
from epd.contracts.media import ItemOptions, RawMedia
from gpu_worker.encoders.base import DecodeFacts, GraphForm, Inputs, ItemPlan
from gpu_worker.encoders.checkpoint import load_weights
from gpu_worker.encoders.loading import LoadRequest
from gpu_worker.encoders.speech.tower import (
    WhisperTower,
    read_mel_rule,
    read_speech_shape,
    require_audio,
    speech_card,
)
from gpu_worker.preprocess.mel import MelRule, chunk_frames, log_mel, stack_windows

PREPROCESS_REVISION = "whisper-1"


class WhisperEncoder:
    """``Encoder`` for Whisper checkpoints."""

    graph_form = GraphForm(units="mel")

    def __init__(self, card: EncoderCard, tower: WhisperTower, rule: MelRule, rows: int) -> None:
        self.card = card
        self._tower = tower
        self._rule = rule
        self._rows = rows

    def plan(self, raw: RawMedia, options: ItemOptions) -> ItemPlan:
        """1500 rows for each window; audio has no options. Raises ``UnsupportedMedia`` for other media."""
        audio = require_audio(raw, encoder=self.card.name, sample_rate=self._rule.sample_rate)
        lengths = chunk_frames(audio.samples, self._rule, self._rule.frames)
        return ItemPlan(
            tokens=self._rows * len(lengths),
            cost=self._rows * len(lengths),
            bucket="window",
            segments=(self._rows,) * len(lengths),
            raw_step=self._rule.window,
            facts=DecodeFacts(audio_feature_lengths=lengths),
        )

    @torch.inference_mode()
    def preprocess(self, raws: Sequence[Tensor], plans: Sequence[ItemPlan]) -> Inputs:
        """float32 [samples] each to log-mel [windows, bins, frames]; silence fills each last window."""
        audio = stack_windows(raws, self._rule, torch.device(self.card.device))
        return Inputs(tensors={"mel": log_mel(audio, self._rule).to(self._tower.conv1.weight.dtype)})

    @torch.inference_mode()
    def forward(self, inputs: Inputs) -> Tensor:
        """[windows * 1500, width]."""
        rows: Tensor = self._tower(inputs.tensors["mel"])
        return rows.flatten(0, 1)

    def sample(self) -> Inputs:
        """One second of silence."""
        audio = torch.zeros(self._rule.sample_rate, device=self.card.device)
        plan = ItemPlan(tokens=self._rows, cost=self._rows, bucket="window", segments=(self._rows,))
        return self.preprocess([audio], [plan])

    def warm_up(self) -> None:
        """Run the sample through the tower once."""
        self.forward(self.sample())


def load(request: LoadRequest) -> WhisperEncoder:
    """Read the encoder half of a Whisper checkpoint. Raises ``SettingsError`` if it cannot be used."""
    shape = read_speech_shape(request.checkpoint.config)
    extractor = request.checkpoint.feature_extractor
    # The tower sets the length of a window: two feature frames for each row.
    rule = read_mel_rule(extractor, bins=shape.mel_bins, frames=2 * shape.positions, seconds=30)
    with torch.device("meta"):
        tower = WhisperTower(shape)
    weights = load_weights(
        tower,
        request.checkpoint,
        prefixes=("model.encoder.", "encoder."),
        device=request.device,
        dtype=request.dtype,
    )
    card = speech_card(
        request, weights, rule, family="whisper", revision=PREPROCESS_REVISION, hidden=shape.width
    )
    return WhisperEncoder(card, tower, rule, shape.positions)
