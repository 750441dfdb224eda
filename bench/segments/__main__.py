"""``python -m bench.segments [--json] [--rounds N]``: a sound whose beginning is known, beside a new one."""

from __future__ import annotations

import argparse
import json
import os
import sys
from dataclasses import asdict

from bench.segments.measurement import Figures, measure

_NOTE = (
    "POST /v1/encode of 16 kHz WAV as inline data, one at a time, whisper-tiny.en in fp32, seconds of the "
    "caller; cold: 65 s of new sound; longer: 65 s after their first 60 s; known: 60 s whose two windows "
    "changed places; medians of the rounds' ratios"
)


def main() -> None:
    """Measure once, and print."""
    parser = argparse.ArgumentParser(prog="python -m bench.segments", description=__doc__)
    parser.add_argument("--json", action="store_true", help="one JSON object instead of sentences")
    parser.add_argument("--rounds", type=int, default=3, help="how often each way is measured")
    options = parser.parse_args()
    load_before = os.getloadavg()[0]
    figures = measure(max(1, options.rounds))
    told = {name: round(value, 3) for name, value in asdict(figures).items()}
    told |= {"load_average_before": round(load_before, 2), "cpus": os.cpu_count() or 0}
    sys.stdout.write(json.dumps(told | {"note": _NOTE}) + "\n" if options.json else _text(figures))


def _text(figures: Figures) -> str:
    return (
        f"65 s of new sound: {figures.cold_s:.2f} s; after their first 60 s: {figures.cold_over_longer:.1f} "
        f"times less; 60 s of known windows: {figures.cold_over_known:.1f} times less\n"
        f"on the device: {figures.device_cold_over_longer:.1f} times less for the longer one\n"
    )


if __name__ == "__main__":
    main()
