"""``python -m bench.encoder [--json] [--only SECTION ...]``: what media cost in front of the encoder, and load.

Each section starts stacks of its own and measures its two sides in the same run, in alternating rounds.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable

from bench.cli import finish, load_average, machine, make_parser
from bench.encoder.result import Result

#: A section by its name for ``--only``. It takes the command line's options.
SECTIONS: dict[str, Callable[[argparse.Namespace], Result]] = {}


def main() -> None:
    """Measure the sections, and print. The status is 1 if a bar is missed."""
    parser = make_parser("encoder", __doc__)
    parser.add_argument("--only", nargs="+", choices=SECTIONS, default=list(SECTIONS), help="sections")
    options = parser.parse_args()
    load_before = load_average()
    results = {name: _measured(name, options) for name in SECTIONS if name in options.only}
    bars = [bar for result in results.values() for bar in result.bars]
    figures = {key: value for result in results.values() for key, value in result.figures.items()}
    missed = [bar.name for bar in bars if not bar.is_met]
    text = "\n".join([*(result.text for result in results.values()), *map(str, bars)]) + "\n"
    document = figures | {"missed": missed} | machine(load_before)
    finish(document, text, as_json=options.json, passed=not missed)


def _measured(name: str, options: argparse.Namespace) -> Result:
    result = SECTIONS[name](options)
    sys.stderr.write(f"{name}: {json.dumps(result.figures)}\n")
    return result


if __name__ == "__main__":
    main()
