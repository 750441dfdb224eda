"""The reference without epd: published processors, whole models and ``generate()`` in one process.

transformers' video processor needs torchvision, which cannot be imported with this torch. So frames are
sampled, resized and cut into patches here, by its rules.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import av
import numpy as np
import torch
from PIL import Image
from torch import Tensor
from transformers import (
    AutoModelForImageTextToText,
    AutoModelForSpeechSeq2Seq,
    AutoTokenizer,
    Qwen2VLImageProcessorPil,
    WhisperFeatureExtractor,
)
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import smart_resize
from transformers.video_utils import VideoMetadata, read_video_pyav

from epd.contracts.embedding import Metadata
from epd.contracts.media import Modality
from examples.epd_transformers.qwen_prompt import Prompt, model_inputs

FRAMES_PER_SECOND = 2
RATE = 16_000


@dataclass(frozen=True)
class Generated:
    """Greedy tokens. ``margin`` is the smallest gap between the two best logits over all tokens."""

    tokens: list[int]
    margin: float


class ColocatedQwen:
    """A complete Qwen-VL model, with its vision tower."""

    def __init__(self, folder: Path) -> None:
        self._model: Any = AutoModelForImageTextToText.from_pretrained(folder, dtype=torch.float32).eval()
        self._tokenizer: Any = AutoTokenizer.from_pretrained(folder)
        self._processor: Any = Qwen2VLImageProcessorPil.from_pretrained(folder)
        self._family: str = self._model.config.model_type

    @torch.inference_mode()
    def generate(self, parts: Sequence[str | dict[str, Any]], limit: int) -> Generated:
        """The tokens of a request's prompt."""
        prompt_parts: list[str | Metadata] = []
        pixels: dict[str, list[Tensor]] = {}
        for part in parts:
            if isinstance(part, str):
                prompt_parts.append(part)
                continue
            kind, (values, known) = self._pixels(part)
            pixels.setdefault(kind, []).append(values)
            prompt_parts.append(known)
        prompt = Prompt(self._tokenizer, prompt_parts, family=self._family)
        inputs = model_inputs(
            prompt, [p for p in prompt_parts if isinstance(p, Metadata)], family=self._family
        )
        inputs |= {name: torch.cat(values) for name, values in pixels.items()}
        return _generated(self._model.generate(**inputs, **_greedy(limit)), len(prompt.ids))

    def _pixels(self, part: dict[str, Any]) -> tuple[str, tuple[Tensor, Metadata]]:
        if part["type"] == "image":
            return "pixel_values", self._image(Path(part["path"]))
        fps = part.get("options", {}).get("fps", FRAMES_PER_SECOND)
        return "pixel_values_videos", self._video(part["path"], fps)

    def _image(self, path: Path) -> tuple[Tensor, Metadata]:
        inputs = self._processor(Image.open(path).convert("RGB"), return_tensors="pt")
        return inputs.pixel_values, self._known(Modality.IMAGE, tuple(inputs.image_grid_thw[0].tolist()))

    def _video(self, path: str, fps: float) -> tuple[Tensor, Metadata]:
        read: Any = read_video_pyav  # its annotation names a different Path
        frames, about = read(path, _sampled, fps=fps, unit=1 if self._family == "qwen3_vl" else 2)
        own = self._processor
        bounds = {"min_pixels": own.size["shortest_edge"], "max_pixels": own.size["longest_edge"]}
        factor = own.patch_size * own.merge_size
        size = smart_resize(frames.shape[1], frames.shape[2], factor=factor, **bounds)
        shown = [np.asarray(Image.fromarray(f).resize(size[::-1], Image.Resampling.BICUBIC)) for f in frames]
        scaled = torch.from_numpy(np.stack(shown)).float() * own.rescale_factor
        values = (scaled - torch.tensor(own.image_mean)) / torch.tensor(own.image_std)
        if len(frames) % 2:
            values = torch.cat([values, values[-1:]])
        grid = (len(values) // 2, size[0] // own.patch_size, size[1] // own.patch_size)
        times = {"video_timestamps": tuple(about.timestamps), "second_per_grid_ts": 2 / about.sampled_fps}
        return _patches(values, grid, own.patch_size), self._known(Modality.VIDEO, grid, **times)

    def _known(self, modality: Modality, grid: tuple[int, ...], **times: Any) -> Metadata:
        count = grid[0] * grid[1] * grid[2] // self._processor.merge_size**2
        return Metadata(
            embedding_key="",
            content_digest="",
            modality=modality,
            encoder="",
            dtype="float32",
            token_count=count,
            hidden=1,
            grid_thw=grid,
            merge_size=self._processor.merge_size,
            **times,
        )


def _patches(values: Tensor, grid: tuple[int, int, int], patch: int) -> Tensor:
    """Values [frames, height, width, 3] as flat patches, in the processor's order: by merge cell."""
    steps, rows, columns = grid
    cut = values.view(steps, 2, rows // 2, 2, patch, columns // 2, 2, patch, 3)
    return cut.permute(0, 2, 5, 3, 6, 8, 1, 4, 7).reshape(steps * rows * columns, -1)


def _sampled(metadata: VideoMetadata, fps: float, unit: int) -> list[int]:
    """The indices of evenly spaced frames; their number is a multiple of ``unit``."""
    total = metadata.total_num_frames
    count = int(total / (metadata.fps or 1) * fps) // unit * unit
    return [int(place) for place in torch.linspace(0, total - 1, count).round()]


class ColocatedWhisper:
    """A complete Whisper model, with its encoder."""

    def __init__(self, folder: Path) -> None:
        self._model: Any = AutoModelForSpeechSeq2Seq.from_pretrained(folder, dtype=torch.float32).eval()
        self._extractor: Any = WhisperFeatureExtractor.from_pretrained(folder)

    @torch.inference_mode()
    def generate(self, path: Path, limit: int) -> Generated:
        """The tokens of a file's audio, of at most 30 s."""
        features = self._extractor(_audio(path), sampling_rate=RATE, return_tensors="pt").input_features
        out = self._model.generate(features, **_greedy(limit))
        return _generated(out, out.sequences.shape[1] - len(out.logits))


def _audio(path: Path) -> np.ndarray[Any, np.dtype[np.float32]]:
    """Mono samples [samples] at 16 kHz."""
    resampler = av.AudioResampler(format="flt", layout="mono", rate=RATE)
    with av.open(path) as container:
        pieces = [piece for frame in container.decode(audio=0) for piece in resampler.resample(frame)]
    pieces += resampler.resample(None)
    return np.concatenate([piece.to_ndarray()[0] for piece in pieces])


def _greedy(limit: int) -> dict[str, Any]:
    kept = {"output_logits": True, "return_dict_in_generate": True}
    return {"max_new_tokens": limit, "do_sample": False} | kept


def _generated(out: Any, prompt: int) -> Generated:
    best = [logits[0].topk(2).values for logits in out.logits]
    margin = min(float(two[0] - two[1]) for two in best)
    return Generated(out.sequences[0, prompt:].tolist(), margin)
