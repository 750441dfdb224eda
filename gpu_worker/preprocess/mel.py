"""Log-mel features of speech, on the device, as Whisper was trained with.

Source: Radford et al. 2022, "Robust Speech Recognition via Large-Scale Weak Supervision", section 2.2, and
the numbers of transformers' ``WhisperFeatureExtractor``: Hann window of 25 ms, hop of 10 ms, Slaney mel
scale, log10 with a floor of 1e-10, cut at 8 below the window's own peak, then (x + 4) / 4.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from gpu_worker.preprocess.tensors import send

#: Slaney's mel scale: linear below 1 kHz, logarithmic above (Auditory Toolbox, 1998).
_LINEAR_HZ_PER_MEL = 200.0 / 3.0
_LOG_START_HZ = 1000.0
_LOG_STEP = math.log(6.4) / 27.0


#: Chunks whose spectra exist at once: about 80 MB for chunks of 2 s.
_CHUNKS_AT_ONCE = 128


@dataclass(frozen=True, kw_only=True, slots=True)
class MelRule:
    """Numbers of a log-mel front end: ``sample_rate`` in Hz; ``n_fft``, ``hop`` and ``window`` in samples."""

    bins: int
    sample_rate: int = 16000
    n_fft: int = 400
    hop: int = 160
    window: int = 480000

    @property
    def frames(self) -> int:
        """Feature frames of one whole window."""
        return self.window // self.hop


def _hz_from_mel(mel: Tensor) -> Tensor:
    """Mel to Hz, float64 of any shape."""
    start = _LOG_START_HZ / _LINEAR_HZ_PER_MEL
    curved = _LOG_START_HZ * torch.exp(_LOG_STEP * (mel - start))
    return torch.where(mel >= start, curved, mel * _LINEAR_HZ_PER_MEL)


def _mel_from_hz(hertz: float) -> float:
    if hertz < _LOG_START_HZ:
        return hertz / _LINEAR_HZ_PER_MEL
    return _LOG_START_HZ / _LINEAR_HZ_PER_MEL + math.log(hertz / _LOG_START_HZ) / _LOG_STEP


@lru_cache(maxsize=16)
def mel_filters(rule: MelRule, device: torch.device) -> Tensor:
    """Triangular filters of equal area, float32 [bins, n_fft // 2 + 1], from 0 Hz to 8 kHz."""
    top = _mel_from_hz(8000.0)
    edges = _hz_from_mel(torch.linspace(0.0, top, rule.bins + 2, dtype=torch.float64))
    line = torch.linspace(0.0, rule.sample_rate / 2, rule.n_fft // 2 + 1, dtype=torch.float64)
    width = edges.diff()
    rising = (line[None, :] - edges[:-2, None]) / width[:-1, None]
    falling = (edges[2:, None] - line[None, :]) / width[1:, None]
    triangles = torch.minimum(rising, falling).clamp(min=0.0)
    return send((triangles * (2.0 / (edges[2:] - edges[:-2]))[:, None]).to(torch.float32), device)


def frames_of(samples: int, rule: MelRule) -> int:
    """Feature frames whose middle lies in the audio: ``samples / hop``, rounded up.

    The published extractor's mask counts the same for padded audio, which audio here always is, and the
    published processors count placeholders from it. Without padding the extractor rounds down, since it has
    no samples to complete the last hop. If this did too, 321 samples would give Qwen2-Audio no row, but its
    processor puts one placeholder for them.
    """
    return -(-samples // rule.hop)


def stack_windows(audios: Sequence[Tensor], rule: MelRule, device: torch.device) -> Tensor:
    """float32 [samples] each to float32 [windows, window], in order. Silence fills each last window."""
    counts = [-(-audio.shape[0] // rule.window) for audio in audios]
    stack = torch.zeros((sum(counts), rule.window), dtype=torch.float32, device=device)
    for audio, part in zip(audios, stack.split(counts), strict=True):
        part.view(-1)[: audio.shape[0]] = audio
    return stack


def mel_level(windows: Tensor, rule: MelRule, *, center: bool) -> Tensor:
    """log10 of mel power, float32 [windows, bins, frames].

    With ``center`` each frame is centred on a hop, and the window is mirrored at its ends; the frame that is
    centred on the end is left out. Without ``center`` a frame begins at each hop, and the caller has padded.
    """
    hann = torch.hann_window(rule.n_fft, device=windows.device)
    spectrum = torch.stft(windows, rule.n_fft, rule.hop, window=hann, center=center, return_complex=True)
    power = spectrum[..., : -1 if center else None].abs().square().contiguous()
    return (mel_filters(rule, windows.device) @ power).clamp(min=1e-10).log10()


def compress(level: Tensor, peak: Tensor) -> Tensor:
    """Cut at 8 below ``peak``, then scale to about -1 to 1."""
    return (torch.maximum(level, peak - 8.0) + 4.0) / 4.0


def log_mel(windows: Tensor, rule: MelRule) -> Tensor:
    """float32 [windows, window] PCM to float32 [windows, bins, frames]; each window has its own floor."""
    level = mel_level(windows, rule, center=True)
    return compress(level, level.amax(dim=(1, 2), keepdim=True))


def chunk_frames(samples: int, rule: MelRule, chunk: int) -> tuple[int, ...]:
    """Valid feature frames of each chunk of ``chunk`` frames. Only the last can have fewer."""
    frames = frames_of(samples, rule)
    return tuple(min(chunk, frames - start) for start in range(0, frames, chunk))


def chunked_log_mel(audios: Sequence[Tensor], rule: MelRule, chunk: int) -> Tensor:
    """float32 [samples] each to float32 [chunks, bins, chunk]; each item has one floor.

    Frames after the last valid one of an item are zero.
    """
    device = audios[0].device
    pieces = torch.cat([_pieces(audio, rule, chunk) for audio in audios])
    level = torch.cat([mel_level(few, rule, center=False) for few in pieces.split(_CHUNKS_AT_ONCE)])
    cuts = [chunk_frames(audio.shape[0], rule, chunk) for audio in audios]
    owner = send(torch.tensor([item for item, cut in enumerate(cuts) for _ in cut]), device)
    peaks = torch.full((len(audios),), -torch.inf, device=device)
    peaks = peaks.scatter_reduce(0, owner, level.amax(dim=(1, 2)), "amax")
    valid = send(torch.tensor([frames for cut in cuts for frames in cut]), device)
    invalid = torch.arange(chunk, device=device) >= valid[:, None]
    return compress(level, peaks[owner][:, None, None]).masked_fill(invalid[:, None, :], 0.0)


def _pieces(audio: Tensor, rule: MelRule, chunk: int) -> Tensor:
    """Overlapping views [chunks, samples] of one padded item; each gives ``chunk`` frames.

    The extractor pads with silence up to its own length, and mirrors both ends of that. At the end, a frame
    sees the mirror only if the audio reaches the end of that length; longer audio is filled up to whole
    frames first.
    """
    frames, half = frames_of(audio.shape[0], rule), rule.n_fft // 2
    stride, overlap = chunk * rule.hop, rule.n_fft - rule.hop
    padded = audio.new_zeros(-(-frames // chunk) * stride + overlap)
    padded[half : half + audio.shape[0]] = audio
    padded[:half] = padded[half + 1 : 2 * half + 1].flip(0)
    end = half + frames * rule.hop
    if frames >= rule.frames:
        beyond = overlap - half
        padded[end : end + beyond] = padded[end - 1 - beyond : end - 1].flip(0)
    return padded.unfold(0, stride + overlap, stride)
