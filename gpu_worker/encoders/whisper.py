"""Family ``whisper``: speech to rows for Whisper's decoder.

Sound is cut into windows of 30 s, and each is encoded on its own. A window always gives all its 1500 rows,
those of the silence behind a short sound included: Whisper was trained so, its decoder attends to all of
them, and so Decode gets exactly what transformers' encoder would have given it.
``audio_feature_lengths`` tells the valid mel frames of each window.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from epd.contracts.card import AudioRules, EncoderCard
from epd.contracts.errors import Internal, UnsupportedMedia
from epd.contracts.media import ItemOptions, Modality, RawAudio, RawMedia
from gpu_worker.encoders.base import DecodeFacts, Inputs, ItemPlan
from gpu_worker.encoders.loading import LoadRequest, require_value, required_int
from gpu_worker.encoders.precision import dtype_name
from gpu_worker.encoders.weights import load_weights
from gpu_worker.encoders.whisper_model import WhisperShape, WhisperTower
from gpu_worker.preprocess.logmel import MelRule, log_mel

PREPROCESS_REVISION = "whisper-1"


class WhisperEncoder:
    """``Encoder`` for Whisper checkpoints."""

    def __init__(self, card: EncoderCard, tower: WhisperTower, rule: MelRule, rows: int) -> None:
        self.card = card
        self._tower = tower
        self._rule = rule
        self._rows = rows

    def plan(self, raw: RawMedia, options: ItemOptions) -> ItemPlan:
        """1500 rows a window; sound takes no options."""
        if not isinstance(raw, RawAudio):
            raise UnsupportedMedia(f"encoder {self.card.name} takes audio, not {raw.kind}")
        if raw.sample_rate != self._rule.sample_rate:
            raise Internal(f"sound at {raw.sample_rate} Hz, encoder wants {self._rule.sample_rate} Hz")
        starts = range(0, raw.samples, self._rule.window)
        lengths = [min(self._rule.window, raw.samples - start) for start in starts]
        return ItemPlan(
            tokens=self._rows * len(lengths),
            cost=self._rows * len(lengths),
            bucket="window",
            segments=(self._rows,) * len(lengths),
            facts=DecodeFacts(audio_feature_lengths=tuple(-(-n // self._rule.hop) for n in lengths)),
        )

    @torch.inference_mode()
    def preprocess(self, raws: Sequence[Tensor], plans: Sequence[ItemPlan]) -> Inputs:
        """float32 [samples] each to log-mel [windows, bins, frames]; silence fills up the last window."""
        windows = sum(len(plan.segments) for plan in plans)
        sound = torch.zeros((windows, self._rule.window), dtype=torch.float32, device=self.card.device)
        first = 0
        for raw, plan in zip(raws, plans, strict=True):
            sound[first : first + len(plan.segments)].view(-1)[: raw.shape[0]] = raw
            first += len(plan.segments)
        return Inputs(tensors={"mel": log_mel(sound, self._rule).to(self._tower.conv1.weight.dtype)})

    @torch.inference_mode()
    def forward(self, inputs: Inputs) -> Tensor:
        """[windows * 1500, width]."""
        rows: Tensor = self._tower(inputs.tensors["mel"])
        return rows.flatten(0, 1)

    def warm_up(self) -> None:
        """One second of silence."""
        sound = torch.zeros(self._rule.sample_rate, device=self.card.device)
        plan = ItemPlan(tokens=self._rows, cost=self._rows, bucket="window", segments=(self._rows,))
        self.forward(self.preprocess([sound], [plan]))


def load(request: LoadRequest) -> WhisperEncoder:
    """Read the encoder half of a Whisper checkpoint."""
    config, processor = request.checkpoint.config, request.checkpoint.image_processor
    require_value(config, "activation_function", supported="gelu")
    require_value(config, "scale_embedding", supported=False)
    shape = WhisperShape(
        width=required_int(config, "d_model"),
        layers=required_int(config, "encoder_layers"),
        heads=required_int(config, "encoder_attention_heads"),
        hidden=required_int(config, "encoder_ffn_dim"),
        mel_bins=required_int(config, "num_mel_bins"),
        positions=int(config.get("max_source_positions", 1500)),
    )
    rate, hop = int(processor.get("sampling_rate", 16000)), int(processor.get("hop_length", 160))
    n_fft = int(processor.get("n_fft", 400))
    # The tower fixes the window: two feature frames a row. The file's chunk_length says the same.
    window = 2 * shape.positions * hop
    rule = MelRule(bins=shape.mel_bins, sample_rate=rate, n_fft=n_fft, hop=hop, window=window)
    with torch.device("meta"):
        tower = WhisperTower(shape)
    weights = load_weights(
        tower,
        request.checkpoint,
        prefixes=("model.encoder.", "encoder."),
        device=request.device,
        dtype=request.dtype,
    )
    card = EncoderCard(
        name=request.name,
        family="whisper",
        modalities=(Modality.AUDIO,),
        hidden=shape.width,
        dtype=dtype_name(request.dtype),
        weights_digest=weights.digest,
        preprocess_revision=PREPROCESS_REVISION,
        audio=AudioRules(sample_rate=rate),
        parameters=weights.parameters,
        device=str(request.device),
    )
    return WhisperEncoder(card, tower, rule, shape.positions)
