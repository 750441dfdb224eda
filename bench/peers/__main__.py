"""``python -m bench.peers [--json] [--only PEER ...]``: epd, litserve, mosec and infinity-emb in one run.

All sides have the same weights, dtype and torch threads, or the same simulated device. Peers run the
published processor and model, as their users do. Requests hold URLs of a media server on loopback, and for
the peers also the files themselves, which is easier for them. The first run makes the peers' environments.
"""

from __future__ import annotations

import signal
import sys
from typing import Any

from bench.cli import finish, load_average, machine, make_parser
from bench.peers.environments import Peer, version
from bench.peers.load import AT_ONCE, IMAGES
from bench.peers.measurement import COMPARISONS, DELAY, FILES, Comparison, measure
from bench.peers.sides import BATCH

_PACKAGES = {Peer.LITSERVE: "litserve", Peer.MOSEC: "mosec", Peer.INFINITY: "infinity_emb"}
_SETTINGS = {
    Peer.LITSERVE: "workers_per_device {0}, max_batch_size {1} requests, batch_timeout 0.01 s, fast_queue, "
    "32 download threads in each worker",
    Peer.MOSEC: "preprocess: {0} workers of 4 download threads; inference: 1 worker, max_batch_size {1} "
    "requests, max_wait_time 10 ms",
    Peer.INFINITY: f"engine torch, batch-size {BATCH}, bettertransformer off, compile off, its own downloads",
}


def main() -> None:
    """Measure, and print. The status is 1 if a bar is missed or a peer did not run."""
    parser = make_parser("peers", __doc__)
    parser.add_argument(
        "--only", nargs="+", type=Peer, choices=list(Peer), default=list(Peer), metavar="PEER"
    )
    names = [one.name for one in COMPARISONS]
    parser.add_argument("--compare", nargs="+", choices=names, default=names, help="what is encoded")
    parser.add_argument("--rounds", type=int, default=3, help="counted rounds of each side and load")
    parser.add_argument("--seconds", type=float, default=12.0, help="length of a round")
    parser.add_argument("--threads", type=int, default=2, help="torch threads of each side")
    options = parser.parse_args()
    # The servers are in process groups of their own: they end with the blocks that started them.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    before = load_average()
    chosen = [
        one for one in COMPARISONS if one.name in options.compare and set(one.peers) & set(options.only)
    ]
    outcomes = [
        measure(
            one,
            options.only,
            rounds=options.rounds,
            seconds=options.seconds,
            threads=options.threads,
            say=_say,
        )
        for one in chosen
    ]
    bars = [bar for outcome in outcomes for bar in outcome.bars()]
    missed = [bar.name for bar in bars if not bar.is_met]
    document: dict[str, Any] = {bar.name: bar.value for bar in bars} | {"missed": missed}
    document |= {one.comparison.name: one.document() for one in outcomes}
    document |= {"settings": {one.name: _settings(one) for one in chosen}, "rounds": options.rounds}
    document |= {"seconds": options.seconds, "threads": options.threads, "note": _note(options.threads)}
    lines = [*(one.text() for one in outcomes), *(f"{bar}\n" for bar in bars), f"{_note(options.threads)}\n"]
    lines += [f"{one.name}: {what}\n" for one in chosen for what in _settings(one).values()]
    complete = not any(outcome.missing for outcome in outcomes)
    finish(document | machine(before), "".join(lines), as_json=options.json, passed=complete and not missed)


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _settings(comparison: Comparison) -> dict[str, str]:
    """What each peer runs with."""
    return {
        peer: f"{peer} {version(peer, _PACKAGES[peer])}: "
        + _SETTINGS[peer].format(*comparison.layouts.get(peer, ()))
        for peer in comparison.peers
    }


def _note(threads: int) -> str:
    return (
        f"closed loop of {AT_ONCE} requests of {IMAGES} JPEGs of 1080p; media server on loopback with "
        f"{1000 * DELAY:.0f} ms delay; repeated: the same {FILES} URLs; files: in base64, to peers only; "
        f"float32, {threads} torch threads a side; medians of the rounds; a peer rests (SIGSTOP) while "
        "another side is asked; litserve's and mosec's answers are the rows, infinity's one vector an image, "
        "epd's are references to rows in shared memory"
    )


if __name__ == "__main__":
    main()
