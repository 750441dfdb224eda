"""One image on an idle system, against its download, decoding and forward in one process.

Both sides have the same encoder on this CPU, DINOv2-small in float32 with random weights. They take turns,
each with the same new photo. Torch computes with one thread on both: several wait for each other at every
operator, which on a machine with other work takes longer than what is measured here.
"""

from __future__ import annotations

import argparse
import statistics
import time
from pathlib import Path

import requests
import simplejpeg
import torch

from bench.cli import folder_in_memory
from bench.encoder.asking import ask_all
from bench.encoder.result import Bar, Result, Step, progress_bar, table
from bench.encoder.site.files import Kind
from bench.encoder.site.media import running_media
from bench.encoder.site.stack import Site, running_site
from bench.engine.rig import REALISTIC, load_random
from epd.contracts.media import BlobRef, ItemOptions, RawImage

_PAIRS = 20
_WARM_UP = 3
#: Seconds between two measurements, in which threads of the side before stop spinning.
_PAUSE = 0.25


class InOneProcess:
    """Download, decoding and forward in this process."""

    def __init__(self, folder: Path) -> None:
        self._encoder = load_random(REALISTIC, folder)
        self._session = requests.Session()

    def seconds(self, url: str) -> float:
        """Seconds for one image."""
        began = time.perf_counter()
        answer = self._session.get(url, timeout=30)
        answer.raise_for_status()
        pixels = simplejpeg.decode_jpeg(answer.content)
        height, width, _ = pixels.shape
        blob = BlobRef(name="none", nbytes=pixels.nbytes)
        raw = RawImage(blob=blob, height=height, width=width, original_size=(width, height))
        plan = self._encoder.plan(raw, ItemOptions())
        with torch.inference_mode():
            self._encoder.forward(self._encoder.preprocess([torch.from_numpy(pixels)], [plan]))
        return time.perf_counter() - began


def measure(options: argparse.Namespace) -> Result:
    """Pairs of both sides, one image at a time."""
    torch.set_num_threads(1)
    with (
        progress_bar("idle", _PAIRS + _WARM_UP) as step,
        folder_in_memory("epd-idle-") as folder,
        running_media() as media,
        running_site(media, settings={"EPD_TORCH_THREADS": "1"}) as site,
    ):
        pairs = _pairs(site, InOneProcess(folder), step)
    extra = statistics.median(epd - alone for epd, alone in pairs)
    epd, alone = (statistics.median(side) for side in zip(*pairs, strict=True))
    bar = Bar("idle_extra_ms", round(1000 * extra, 1), 12.0, at_least=False)
    figures = {
        "device": f"{REALISTIC.name} in float32 on this CPU, one torch thread",
        "epd_ms": round(1000 * epd, 1),
        "one_process_ms": round(1000 * alone, 1),
        "extra_ms": bar.value,
        "pairs_ms": [[round(1000 * seconds, 1) for seconds in pair] for pair in pairs],
    }
    rows = [("epd", figures["epd_ms"]), ("one process", figures["one_process_ms"])]
    text = f"one 1080p JPEG, 50 ms away, {figures['device']}\n{table(('', 'median, ms'), rows)}"
    return Result(figures, text, (bar,))


def _pairs(site: Site, alone: InOneProcess, step: Step) -> list[tuple[float, float]]:
    """Seconds of epd and of one process, for each image."""
    pairs = []
    for number in range(_WARM_UP + _PAIRS):
        (url,) = site.media.new_urls(Kind.FULL_HD, 1)
        seconds = {}
        for side in ("epd", "alone") if number % 2 else ("alone", "epd"):
            time.sleep(_PAUSE)
            seconds[side] = alone.seconds(url) if side == "alone" else _through_epd(site, url)
        pairs.append((seconds["epd"], seconds["alone"]))
        step(f"pair {number + 1}")
    return pairs[_WARM_UP:]


def _through_epd(site: Site, url: str) -> float:
    return ask_all(site.port, [[{"type": "image", "url": url}]], at_once=1)
