"""What the tests of the decode children share: files, a call, signals and waiting."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import psutil

from epd.contracts.embedding import AudioRules, VideoRules
from epd.contracts.media import ItemOptions, Modality, RawAudio, RawFrames, RawImage
from tests.hostile.bad_server import MEDIA
from workers.decode.children import DecodeChildren
from workers.limits import DecodeLimits, Hold, hold_nothing

RULES = {
    Modality.IMAGE: None,
    Modality.VIDEO: VideoRules(fps=2, min_frames=2, max_frames=16),
    Modality.AUDIO: AudioRules(sample_rate=16_000),
}
IMAGE, VIDEO, WITH_AUDIO, CORRUPT = "IMG-01.jpg", "VID-01.mp4", "VID-21.mov", "VID-09.mp4"
Raw = RawImage | RawFrames | RawAudio
MakePool = Callable[..., DecodeChildren]


def run(
    children: DecodeChildren,
    out: Path,
    name: str | Path = IMAGE,
    modality: Modality = Modality.IMAGE,
    *,
    hold: Hold = hold_nothing,
    timeout: float = 60,
    **limits: int,
) -> Raw:
    return children.decode(
        MEDIA / name,
        modality=modality,
        options=ItemOptions(),
        rules=RULES[modality],
        limits=DecodeLimits(hold=hold, **limits),
        out=out,
        timeout=timeout,
    )


def send(children: DecodeChildren, number: signal.Signals) -> None:
    """Send a signal to all children."""
    for pid in children.pids:
        os.kill(pid, number)


def wait_until(condition: Callable[[], object], within: float = 20) -> None:
    end = time.monotonic() + within
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


def is_gone(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True
