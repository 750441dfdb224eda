"""What the speech encoders with packed rows share: plan, batch layout and the run through the blocks.

Audio is cut into windows, and only the rows of real audio go through the blocks, not those of padding.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from epd.contracts.embedding import EncoderCard
from epd.contracts.errors import EmptyMedia
from epd.contracts.media import ItemOptions, RawMedia
from gpu_worker.encoders.attention import Segments, offsets_of
from gpu_worker.encoders.base import DecodeFacts, GraphForm, Inputs, ItemPlan, SegmentRule
from gpu_worker.encoders.speech.tower import require_audio
from gpu_worker.preprocess.mel import MelRule, chunk_frames
from gpu_worker.preprocess.tensors import send

#: Rows of the smallest bucket, and of the step between buckets: 2.6 s and 1.3 s. Even, since rows are paired.
_SMALLEST_ROWS = 128
_STEP_ROWS = 64

#: Rows of a typical window: 10 s of audio. It sets the segments of a bucket.
_TYPICAL_ROWS = 500


@dataclass(frozen=True, kw_only=True, slots=True)
class PackedRows:
    """What a tower needs besides the features. The tensors are on the device.

    ``frames`` int64 [windows] are valid feature frames. ``keep`` int64 [rows] are the indices of valid rows
    among all rows of the padded windows. ``pairs`` int64 [2 * tokens] are the indices of the two packed rows
    of each token. ``segments`` are the rows of each window, which attend only to themselves.
    """

    frames: Tensor
    keep: Tensor
    pairs: Tensor
    segments: Segments


def rows_of(frames: int) -> int:
    """Valid rows after the second convolution."""
    return (frames + 1) // 2


def kept_rows(windows: Sequence[int], stride: int) -> Tensor:
    """int64 [rows]: indices of the first rows of each window; padded windows have ``stride`` rows each."""
    return torch.cat([start * stride + torch.arange(rows) for start, rows in enumerate(windows)])


def paired_rows(runs: Iterable[int]) -> Tensor:
    """int64 [2 * tokens]: indices of all rows of packed runs, except an odd last row of a run."""
    parts, start = [], 0
    for rows in runs:
        parts.append(start + torch.arange(rows - rows % 2))
        start += rows
    return torch.cat(parts)


def run_packed(embedded: Tensor, blocks: nn.ModuleList, rows: PackedRows) -> Tensor:
    """Run the blocks: [windows, rows, width] of padded windows to averaged rows [tokens, width]."""
    x: Tensor = embedded.flatten(0, 1).index_select(0, rows.keep)
    for block in blocks:
        x = block(x, rows.segments)
    return x.index_select(0, rows.pairs).view(-1, 2, x.shape[1]).mean(1)


def speech_form(window_rows: int) -> GraphForm:
    """Valid rows, cut into windows of at most ``window_rows``; features come in whole windows.

    A bucket has room for more windows than its rows would fill. Their convolutions cost a few percent of the
    blocks, and short items can share a bucket. The output grows with ``pairs``, as an odd last row gives no
    token.
    """
    windows = SegmentRule(lengths="windows", longest=window_rows, typical=min(window_rows, _TYPICAL_ROWS))
    return GraphForm(
        units="keep",
        smallest=_SMALLEST_ROWS,
        multiple=_STEP_ROWS,
        indices={"pairs": 1},
        segments={"offsets": windows},
        per_segment={"mel": "offsets", "frames": "offsets"},
        output="pairs",
    )


class PackedSpeechEncoder(ABC):
    """``Encoder`` for audio in windows of ``window`` feature frames.

    A family defines how features are made (``mel``), and whether the windows of an item are one input of the
    language model or one each. ``joined`` windows are one input: one feature length, and rows are averaged
    across windows. Such an item cannot be cut, since a louder moment anywhere changes the features of all of
    it. Separate windows have their own floor and their own average, so the item can be cut at them.
    """

    joined: ClassVar[bool]

    def __init__(self, card: EncoderCard, tower: nn.Module, rule: MelRule, window: int) -> None:
        self.card = card
        self.rule = rule
        self.window = window
        self.graph_form = speech_form(rows_of(window))
        self._tower = tower
        self._dtype = next(tower.parameters()).dtype

    @abstractmethod
    def mel(self, audios: Sequence[Tensor]) -> Tensor:
        """Features of PCM: float32 [samples] each to float32 [windows, bins, window]."""

    def plan(self, raw: RawMedia, options: ItemOptions) -> ItemPlan:
        """Rows by the published formula. Audio has no options.

        Raises:
            UnsupportedMedia: the item is an image or a video.
            EmptyMedia: the audio has two frames (20 ms) or less, and so gives no row.
        """
        audio = require_audio(raw, encoder=self.card.name, sample_rate=self.rule.sample_rate)
        frames = chunk_frames(audio.samples, self.rule, self.window)
        windows = tuple(rows_of(valid) for valid in frames)
        tokens = sum(rows // 2 for rows in self._runs(windows))
        if tokens == 0:
            least = 2 * self.rule.hop + 1
            raise EmptyMedia(f"{audio.samples} samples of audio give no row; the least is {least}")
        return ItemPlan(
            tokens=tokens,
            cost=sum(windows),
            bucket="packed",
            segments=windows,
            segment_tokens=() if self.joined else tuple(rows // 2 for rows in windows),
            raw_step=None if self.joined else self.window * self.rule.hop,
            facts=DecodeFacts(audio_feature_lengths=(sum(frames),) if self.joined else frames),
        )

    def _runs(self, windows: tuple[int, ...]) -> tuple[int, ...]:
        """The rows that are averaged as one run, from the rows of an item's windows."""
        return (sum(windows),) if self.joined else windows

    @torch.inference_mode()
    def preprocess(self, raws: Sequence[Tensor], plans: Sequence[ItemPlan]) -> Inputs:
        """Features of whole windows, and the indices of the valid rows in them."""
        device = torch.device(self.card.device)
        frames = [n for raw in raws for n in chunk_frames(raw.shape[0], self.rule, self.window)]
        windows = tuple(rows for plan in plans for rows in plan.segments)
        runs = (rows for plan in plans for rows in self._runs(plan.segments))
        return Inputs(
            tensors={
                "mel": self.mel(raws).to(self._dtype),
                "frames": send(torch.tensor(frames), device),
                "keep": send(kept_rows(windows, rows_of(self.window)), device),
                "pairs": send(paired_rows(runs), device),
                "offsets": offsets_of(windows, device),
            },
            layout={"windows": windows},
        )

    @torch.inference_mode()
    def forward(self, inputs: Inputs) -> Tensor:
        """[sum of tokens, hidden]."""
        held = inputs.tensors
        rows = PackedRows(
            frames=held["frames"],
            keep=held["keep"],
            pairs=held["pairs"],
            segments=Segments(offsets=held["offsets"], lengths=inputs.layout["windows"]),
        )
        return torch.as_tensor(self._tower(held["mel"], rows))

    def sample(self) -> Inputs:
        """A tenth of a second of silence."""
        audio = torch.zeros(10 * self.rule.hop, device=self.card.device)
        plan = ItemPlan(tokens=2, cost=5, bucket="packed", segments=(5,))
        return self.preprocess([audio], [plan])

    def warm_up(self) -> None:
        """Run the sample through the tower once."""
        self.forward(self.sample())
