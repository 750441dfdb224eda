"""The options of the command line that choose a load."""

from __future__ import annotations

import argparse

from bench.encoder.load.traffic import Arrivals, Mix, Traffic
from bench.encoder.site.device import DeviceModel
from bench.encoder.site.files import Kind
from bench.encoder.site.media import Media

_SIZES = tuple(kind.value for kind in Kind if kind.media_type == "image")


def add_load_options(parser: argparse.ArgumentParser) -> None:
    """Add them to a parser."""
    group = parser.add_argument_group("load", "for sweep and baselines")
    group.add_argument("--qps", type=float, nargs="+", metavar="RATE", help="these rates, instead of a sweep")
    group.add_argument("--seconds", type=float, default=8.0, help="length of a load; longer if it is light")
    group.add_argument("--arrivals", type=Arrivals, choices=list(Arrivals), default=Arrivals.POISSON)
    group.add_argument("--media", choices=["image", "audio", "video"], default="image")
    group.add_argument("--size", choices=_SIZES, default=Kind.FULL_HD.value, help="of images")
    group.add_argument("--items", type=int, default=4, help="of a request")
    group.add_argument("--mix", type=Mix, choices=list(Mix), default=Mix.DISTINCT)
    group.add_argument(
        "--device-model", type=device_model, default=DeviceModel(), metavar="MS_A_BATCH,MS_AN_ITEM",
        help="the simulated device of the sweep (default 0,0); 'none': DINOv2-small, images alone",
    )  # fmt: skip


def device_model(text: str) -> DeviceModel | None:
    """The model of ``30,1``; None for ``none``. Raises ``ValueError`` for anything else."""
    if text == "none":
        return None
    batch, item = map(float, text.split(","))
    if min(batch, item) < 0:
        raise ValueError(f"costs are 0 or more: {text}")
    return DeviceModel(batch, item)


def kind_of(options: argparse.Namespace) -> Kind:
    """The kind of the files."""
    return Kind(options.size if options.media == "image" else options.media)


def traffic(options: argparse.Namespace, media: Media) -> Traffic:
    """The requests that the options describe."""
    return Traffic(media, kind_of(options), options.items, options.mix, options.arrivals)
