"""Figures and pins of the comparison with other servers."""

import pytest

from bench.peers.environments import Peer, requirements, version
from bench.peers.load import IMAGES, Figures, Round, percentile, summary
from bench.peers.measurement import COMPARISONS, Load, Outcome
from bench.peers.servers.encoder import read_options

pytestmark = pytest.mark.unit


def _figures(rate: float, p99: float) -> Figures:
    return Figures(rate=rate, p50=p99 / 2, p99=p99, cpu_ms=1.0, requests=9)


@pytest.mark.parametrize(("percent", "value"), [(0, 1), (50, 5), (51, 6), (99, 10), (100, 10)])
def test_a_percentile_is_one_of_the_values(percent: float, value: float) -> None:
    assert percentile([10, 9, 8, 7, 6, 5, 4, 3, 2, 1], percent) == value


def test_a_summary_has_the_median_of_each_figure() -> None:
    rounds = [Round([1.0, 2.0], 2.0, 0.08), Round([3.0], 4.0, 0.08), Round([2.0, 2.0, 5.0], 3.0, 0.06)]
    assert summary(rounds) == Figures(rate=IMAGES * 1.0, p50=2.0, p99=3.0, cpu_ms=10.0, requests=6)


def test_bars_compare_with_the_fastest_peer() -> None:
    outcome = Outcome(COMPARISONS[0])
    loads = {"epd": (12.0, 4.0), Peer.LITSERVE: (8.0, 1.0), Peer.MOSEC: (10.0, 5.0)}
    outcome.figures = {name: dict.fromkeys(Load, _figures(*figures)) for name, figures in loads.items()}
    bars = {bar.name: (bar.value, bar.is_met) for bar in outcome.bars()}
    assert bars == {
        "real_over_best_peer": (1.2, True),
        "real_p99_over_best_peer": (0.8, True),
        "real_repeated_over_best_peer": (1.2, False),
    }


def test_there_are_no_bars_without_a_peer() -> None:
    outcome = Outcome(COMPARISONS[0])
    outcome.figures = {"epd": dict.fromkeys(Load, _figures(1.0, 1.0))}
    assert outcome.bars() == ()


@pytest.mark.parametrize("peer", list(Peer))
def test_every_package_of_a_peer_is_pinned(peer: Peer) -> None:
    pins = [line for line in requirements(peer).splitlines() if line]
    assert [pin for pin in pins if pin.count("==") != 1] == []
    assert version(peer, "torch") == "2.13.0"


def test_a_server_reads_its_own_options_and_no_others() -> None:
    options = read_options(
        ["--port", "7", "--log-level", "warning", "--layout", "4", "8", "--device-ms", "30", "1"]
    )
    assert (options.port, options.layout, options.device_ms) == (7, (4, 8), (30.0, 1.0))
