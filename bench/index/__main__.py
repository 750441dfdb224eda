"""``python -m bench.index [--json] [--entries N]``: what a million index entries cost a server."""

from __future__ import annotations

import os
from dataclasses import asdict

from bench.cli import finish, load_average, make_parser
from bench.index.measurement import IndexFigures, measure

#: The figures to stay below: bytes of an entry, and an eviction among many entries over one among few.
MOST_BYTES = 1024.0
MOST_RATIO = 1.5
_DIGITS = 2


def main() -> None:
    """Measure once, and print. The status is 1 if a target is missed."""
    parser = make_parser("index", __doc__)
    parser.add_argument("--entries", type=int, default=1_000_000, help="entries of the large index")
    parser.add_argument("--few", type=int, default=10_000, help="entries of the small index")
    parser.add_argument("--repeats", type=int, default=200, help="evictions in each, alternating")
    options = parser.parse_args()
    figures = measure(options.entries, options.few, options.repeats)
    document = {name: round(value, _DIGITS) for name, value in asdict(figures).items()}
    document |= {"load_average": round(load_average(), _DIGITS), "cpus": os.cpu_count() or 0}
    largest = max(figures.bytes_per_entry, figures.bytes_per_entry_both, figures.bytes_per_entry_l2)
    passed = largest < MOST_BYTES and figures.evict_ratio <= MOST_RATIO
    finish(document, _text(figures), as_json=options.json, passed=passed)


def _text(figures: IndexFigures) -> str:
    return (
        f"{figures.entries} entries, {figures.bytes_per_entry:.0f} bytes each in L1, "
        f"{figures.bytes_per_entry_l2:.0f} in L2, {figures.bytes_per_entry_both:.0f} in both "
        f"(below {MOST_BYTES:.0f}); an image {figures.bytes_per_entry_image:.0f}, "
        f"audio {figures.bytes_per_entry_audio:.0f}, a video {figures.bytes_per_entry_video:.0f}\n"
        f"an eviction takes {figures.evict_us_many:.1f} us an entry, among {figures.few} entries "
        f"{figures.evict_us_few:.1f}; ratio {figures.evict_ratio:.2f} (at most {MOST_RATIO})\n"
        f"a look-up takes {figures.lookup_us_many:.1f} us a key, among {figures.few} entries "
        f"{figures.lookup_us_few:.1f}; ratio {figures.lookup_ratio:.2f}\n"
    )


if __name__ == "__main__":
    main()
