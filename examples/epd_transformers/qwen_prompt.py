"""Builds a Qwen-VL prompt: text and media as token ids, with one placeholder for each embedding row."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from epd.contracts.embedding import Metadata
from epd.contracts.handoff import Span
from epd.contracts.media import Modality
from examples.epd_transformers.sequence import Part

#: transformers' ``mm_token_type_ids`` and the names of the placeholder tokens.
TYPES = {Modality.IMAGE: 1, Modality.VIDEO: 2}
PADS = {Modality.IMAGE: "<|image_pad|>", Modality.VIDEO: "<|video_pad|>"}
BEGIN, END = "<|vision_start|>", "<|vision_end|>"


class Prompt:
    """The token ids, the type of each token, and the runs of placeholders of each medium."""

    def __init__(self, tokenizer: Any, parts: Sequence[Part], *, family: str) -> None:
        """Qwen3-VL has a separate run for each time step of a video, after the time of that step."""
        self.ids: list[int] = []
        self.types: list[int] = []
        self.runs: list[tuple[Span, ...]] = []
        self._tokenizer = tokenizer
        for part in parts:
            if isinstance(part, str):
                self._add_text(part)
            elif part.modality == Modality.VIDEO and family == "qwen3_vl":
                self.runs.append(tuple(self._add_step(part, time) for time in step_times(part)))
            else:
                self.runs.append((self._add_rows(part.modality, part.token_count),))

    def _add_text(self, text: str) -> None:
        ids = self._tokenizer.encode(text, add_special_tokens=False)
        self.ids += ids
        self.types += [0] * len(ids)

    def _add_rows(self, modality: Modality, count: int) -> Span:
        self._add_text(BEGIN)
        run = (len(self.ids), count)
        self.ids += [self._tokenizer.convert_tokens_to_ids(PADS[modality])] * count
        self.types += [TYPES[modality]] * count
        self._add_text(END)
        return run

    def _add_step(self, video: Metadata, time: float) -> Span:
        self._add_text(f"<{time:.1f} seconds>")
        assert video.grid_thw is not None
        return self._add_rows(Modality.VIDEO, video.token_count // video.grid_thw[0])


def step_times(video: Metadata) -> list[float]:
    """The time of each step of the grid in seconds: the mean of its two frames."""
    times = list(video.video_timestamps or ())
    return [
        (first + second) / 2 for first, second in zip(times[0::2], [*times[1::2], times[-1]], strict=False)
    ]


def model_inputs(prompt: Prompt, media: Sequence[Metadata], *, family: str) -> dict[str, Tensor]:
    """Token ids, their types and the grids, under the names that transformers' processor uses."""
    inputs = {"input_ids": torch.tensor([prompt.ids]), "mm_token_type_ids": torch.tensor([prompt.types])}
    for type_ in TYPES:
        grids = [medium.grid_thw for medium in media if medium.modality == type_]
        if grids:
            inputs[f"{type_}_grid_thw"] = torch.tensor(grids)
    steps = [medium.second_per_grid_ts for medium in media if medium.modality == Modality.VIDEO]
    if steps and family != "qwen3_vl":
        inputs["second_per_grid_ts"] = torch.tensor(steps)
    return inputs
