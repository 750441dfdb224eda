"""Log-mel features of sounds of any length, cut into equal chunks, as Qwen2.5-Omni takes them.

The features are those of ``WhisperFeatureExtractor`` over the whole sound, so the floor is one for all of
its chunks; the extractor's own length (300 s in the published file) only pads, and never cuts. Frames are
taken chunk by chunk from overlapping pieces, so that the sounds of a batch share the transforms.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from gpu_worker.preprocess.logmel import MelRule, compress, frames_of, mel_level
from gpu_worker.preprocess.sending import send

#: Chunks whose spectra exist at once: about 80 MB of them in chunks of 2 s.
_CHUNKS_AT_ONCE = 128


def chunk_frames(samples: int, rule: MelRule, chunk: int) -> tuple[int, ...]:
    """Valid feature frames of each chunk of ``chunk`` frames; only the last can have fewer."""
    frames = frames_of(samples, rule)
    return tuple(min(chunk, frames - start) for start in range(0, frames, chunk))


def chunked_log_mel(sounds: Sequence[Tensor], rule: MelRule, chunk: int) -> Tensor:
    """float32 [samples] each to float32 [chunks, bins, chunk]; frames behind a sound's last are zero."""
    device = sounds[0].device
    pieces = torch.cat([_pieces(sound, rule, chunk) for sound in sounds])
    level = torch.cat([mel_level(few, rule, center=False) for few in pieces.split(_CHUNKS_AT_ONCE)])
    cuts = [chunk_frames(sound.shape[0], rule, chunk) for sound in sounds]
    owner = send(torch.tensor([item for item, cut in enumerate(cuts) for _ in cut]), device)
    peaks = torch.full((len(sounds),), -torch.inf, device=device)
    peaks = peaks.scatter_reduce(0, owner, level.amax(dim=(1, 2)), "amax")
    valid = send(torch.tensor([frames for cut in cuts for frames in cut]), device)
    behind = torch.arange(chunk, device=device) >= valid[:, None]
    return compress(level, peaks[owner][:, None, None]).masked_fill(behind[:, None, :], 0.0)


def _pieces(sound: Tensor, rule: MelRule, chunk: int) -> Tensor:
    """Overlapping views [chunks, samples] of one padded sound; each gives ``chunk`` frames.

    The extractor pads with silence up to its own length and mirrors both ends of that. At the back a frame
    sees the mirror only where the sound reaches the end of that length; a longer sound is filled up to whole
    frames first.
    """
    frames, half = frames_of(sound.shape[0], rule), rule.n_fft // 2
    stride, overlap = chunk * rule.hop, rule.n_fft - rule.hop
    padded = sound.new_zeros(-(-frames // chunk) * stride + overlap)
    padded[half : half + sound.shape[0]] = sound
    padded[:half] = padded[half + 1 : 2 * half + 1].flip(0)
    end = half + frames * rule.hop
    if frames >= rule.frames:
        beyond = overlap - half
        padded[end : end + beyond] = padded[end - 1 - beyond : end - 1].flip(0)
    return padded.unfold(0, stride + overlap, stride)
