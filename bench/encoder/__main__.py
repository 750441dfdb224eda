"""``python -m bench.encoder [--json] [--html FILE] [--only SECTION ...]``: media in front of the encoder.

Each section starts stacks of its own and measures its two sides in the same run, in alternating rounds. The
JSON object has the figures with bars by their names, and all figures of a section under the section's name.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path

from bench.cli import finish, load_average, machine, make_parser
from bench.encoder import cold, idle, queueing
from bench.encoder.load import baselines, sweep
from bench.encoder.load.options import add_load_options
from bench.encoder.report.page import write_page
from bench.encoder.result import Result

#: A section by its name for ``--only``. It takes the command line's options.
SECTIONS: dict[str, Callable[[argparse.Namespace], Result]] = {
    "cold": cold.measure,
    "sweep": sweep.measure,
    "baselines": baselines.measure,
    "idle": idle.measure,
    "queue": queueing.measure,
}


def main() -> None:
    """Measure the sections, and print. The status is 1 if a bar is missed."""
    parser = make_parser("encoder", __doc__)
    parser.add_argument("--only", nargs="+", choices=SECTIONS, default=list(SECTIONS), help="sections")
    parser.add_argument("--rounds", type=int, default=3, help="counted rounds of each side")
    parser.add_argument("--html", type=Path, metavar="FILE", help="write a page with plots, too")
    add_load_options(parser)
    options = parser.parse_args()
    load_before = load_average()
    results = {name: _measured(name, options) for name in SECTIONS if name in options.only}
    bars = [bar for result in results.values() for bar in result.bars]
    missed = [bar.name for bar in bars if not bar.is_met]
    document = {bar.name: bar.value for bar in bars} | {"missed": missed}
    document |= {name: result.figures for name, result in results.items()} | machine(load_before)
    text = "\n".join([*(result.text for result in results.values()), *map(str, bars)]) + "\n"
    if options.html:
        write_page(options.html, document, bars)
    finish(document, text, as_json=options.json, passed=not missed)


def _measured(name: str, options: argparse.Namespace) -> Result:
    """A section's result, whose text goes to standard error at once: a later section may fail."""
    result = SECTIONS[name](options)
    if options.json:
        sys.stderr.write(result.text)
    return result


if __name__ == "__main__":
    main()
