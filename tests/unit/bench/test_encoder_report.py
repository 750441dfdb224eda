"""The page of bench.encoder: its axes, its texts, and that it needs nothing from outside."""

from __future__ import annotations

import re
from datetime import datetime
from typing import Any
from xml.etree import ElementTree

import pytest

from bench.encoder.report.axes import linear, logarithmic, number
from bench.encoder.report.charts import Line, bar_chart, line_chart
from bench.encoder.report.page import page
from bench.encoder.result import Bar

NOW = datetime(2026, 12, 1)
DEVICE = "simulated device: 30 ms a batch, 1 ms an item"


def load(qps: float) -> dict[str, Any]:
    latencies = {f"p{one}_ms": 100.0 + one for one in (50, 90, 95, 99)}
    costs = {"success_rate": 0.995, "cpu_ms_an_item": {"api": 2.0, "decode": 9.0}, "items_a_batch": 3.0}
    return {"planned_qps": qps, "achieved_qps": qps, "items_per_s": 4 * qps} | latencies | costs


def document() -> dict[str, Any]:
    setting = {"device": DEVICE, "traffic": "4 x 1080p"}
    points = [load(5.0), load(10.0)]
    side = {
        "points": points,
        "at_70": points,
        "items_per_s_at_knee": 40.0,
        "p50_ms_at_70": 120.0,
        "p99_ms_at_70": 200.0,
    }
    return {
        "cpus": 2,
        "load_average_before": 0.5,
        "sweep": setting | {"points": points, "knee_qps": 10.0},
        "baselines": setting | {"sides": {"epd": side, "serial": side}},
    }


@pytest.mark.parametrize(
    ("highest", "end"), [(0.0, 1.0), (1.0, 1.0), (4.1, 5.0), (72.4, 80.0), (980.0, 1000.0), (0.03, 0.03)]
)
def test_a_linear_axis_ends_at_a_round_number(highest: float, end: float) -> None:
    axis = linear([highest], 0.0, 100.0)
    assert axis.high == pytest.approx(end)
    assert (axis(0.0), axis(axis.high)) == (0.0, 100.0)


def test_a_logarithmic_axis_encloses_its_values() -> None:
    axis = logarithmic([175.3, 1322.9], 300.0, 40.0)
    assert axis.ticks == (100.0, 200.0, 500.0, 1000.0, 2000.0)
    assert axis(100.0) == pytest.approx(300.0)
    assert axis(2000.0) == pytest.approx(40.0)
    assert logarithmic([10.0], 0.0, 1.0).ticks == (10.0, 20.0)
    assert logarithmic([], 0.0, 1.0).low > 0


@pytest.mark.parametrize(
    ("value", "text"), [(0.0, "0"), (12345.6, "12 346"), (14.02, "14"), (5.114, "5.11"), (0.0305, "0.0305")]
)
def test_a_number_has_three_digits_that_count(value: float, text: str) -> None:
    assert number(value) == text


def test_plots_are_xml_and_escape_their_texts() -> None:
    evil = '<script>alert("x")</script> & more'
    lines = line_chart(
        [Line(evil, [(1.0, 2.0), (2.0, 4.0)])], title=evil, x=evil, y=evil, mark=(1.5, evil), log=True
    )
    bars = bar_chart({evil: {evil: 3.0, "other": 1.0}, "none": {evil: 0.0}}, title=evil, x=evil)
    for svg in (lines, bars):
        texts = "".join(ElementTree.fromstring(svg).itertext())
        assert evil in texts
        assert "<script" not in svg


def test_a_plot_of_nothing_is_a_plot() -> None:
    for svg in (line_chart([], title="t", x="x", y="y", log=True), bar_chart({}, title="t", x="x")):
        ElementTree.fromstring(svg)


def test_the_page_says_what_was_simulated_and_whether_bars_are_met() -> None:
    bars = [Bar("vs_serial", 5.2, 4.0), Bar("p50_over_serial", 1.2, 1.0, at_least=False)]
    text = page(document(), bars, NOW)
    assert text.count(DEVICE) == 2
    assert "at least 4: met" in text
    assert "at most 1: missed" in text
    assert "99.5 %" in text
    for svg in re.findall(r"<svg.*?</svg>", text, re.DOTALL):
        ElementTree.fromstring(svg)


def test_the_page_needs_nothing_from_outside() -> None:
    text = page(document(), [], NOW).replace('xmlns="http://www.w3.org/2000/svg"', "")
    assert not re.search(r"https?:|<script|<link|@import|url\(", text)


def test_a_run_without_a_knee_or_with_some_sections_has_a_page() -> None:
    one = document()
    one["sweep"]["knee_qps"] = None
    del one["baselines"]
    assert "Load on the stack" in page(one, [], NOW)
    assert "knee:" not in page(one, [], NOW)
