"""The page: bars and their bounds first, then a section of plots and tables for each part of the run.

It is made from the JSON object of the run, and needs nothing from outside: no script, style sheet or font.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from html import escape
from pathlib import Path
from typing import Any

from bench.encoder.report.charts import Line, bar_chart, line_chart
from bench.encoder.result import Bar

_STYLE = """
body { margin: 0 auto; max-width: 1320px; padding: 24px 28px 60px; background: #fff; color: #1b1b1b;
  font: 15px/1.45 system-ui, sans-serif; }
h1 { font-size: 26px; margin: 0 0 4px; } h2 { font-size: 20px; margin: 40px 0 2px; }
p.note { color: #555; margin: 2px 0 14px; } span.device { background: #fff1d6; border: 1px solid #e3c98f;
  border-radius: 4px; padding: 1px 7px; color: #5c4300; }
div.tiles, div.plots { display: flex; flex-wrap: wrap; gap: 14px; }
div.tile { border: 1px solid #ddd; border-left: 5px solid #1b7f5c; border-radius: 5px; padding: 8px 14px; }
div.tile.missed { border-left-color: #c0392b; } div.tile b { display: block; font-size: 22px; }
div.tile small { color: #555; }
figure { margin: 0; flex: 1 1 560px; max-width: 640px; border: 1px solid #e3e3e3; border-radius: 6px;
  padding: 10px 12px; } figcaption { font-weight: 600; margin-bottom: 4px; }
svg { width: 100%; height: auto; display: block; }
div.table { overflow-x: auto; margin-top: 16px; } table { border-collapse: collapse; font-size: 13px; }
th, td { padding: 4px 10px; border-bottom: 1px solid #e6e6e6; text-align: right; white-space: nowrap; }
th { color: #444; border-bottom-color: #999; } td:first-child, th:first-child { text-align: left; }
"""

_PERCENTILES = ("p50_ms", "p90_ms", "p95_ms", "p99_ms")
#: Columns of a table of loads: its heading, and the name of the figure.
_COLUMNS = {
    "planned, requests/s": "planned_qps",
    "achieved, requests/s": "achieved_qps",
    "items/s": "items_per_s",
    "succeeded": "success_rate",
    "p50, ms": "p50_ms",
    "p90, ms": "p90_ms",
    "p95, ms": "p95_ms",
    "p99, ms": "p99_ms",
    "items a batch": "items_a_batch",
    "padding": "padding_share",
    "cached": "cached_share",
    "round trips an item": "round_trips_an_item",
    "commands an item": "commands_an_item",
}

_SHARES = frozenset({"success_rate", "padding_share", "cached_share"})

Figures = Mapping[str, Any]


def write_page(path: Path, document: Figures, bars: Sequence[Bar]) -> None:
    """Write the page of a run. ``document`` is its JSON object."""
    path.write_text(page(document, bars, datetime.now()), encoding="utf-8")


def page(document: Figures, bars: Sequence[Bar], now: datetime) -> str:
    """The HTML of a run that ended now."""
    sections = [make(document[name]) for name, make in _SECTIONS.items() if name in document]
    where = f"{document.get('cpus')} CPUs, load average before: {document.get('load_average_before', 0):.2f}"
    body = "\n".join([_tiles(bars), *sections])
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>bench.encoder</title>'
        f"<style>{_STYLE}</style></head><body>\n<h1>Encoder tier under load</h1>\n"
        f'<p class="note">python -m bench.encoder, {now:%Y-%m-%d %H:%M}; {escape(where)}</p>\n{body}\n'
        "</body></html>\n"
    )


def _tiles(bars: Iterable[Bar]) -> str:
    tiles = (
        f'<div class="tile{"" if bar.is_met else " missed"}"><small>{escape(bar.name)}</small>'
        f"<b>{bar.value:g}</b><small>{'at least' if bar.at_least else 'at most'} {bar.bound:g}: "
        f"{'met' if bar.is_met else 'missed'}</small></div>"
        for bar in bars
    )
    return f'<div class="tiles">{"".join(tiles)}</div>'


def _sweep(found: Figures) -> str:
    points = found["points"]
    knee = found.get("knee_qps")
    mark = (knee, f"knee: {knee} requests/s") if knee else None
    rate = "planned load (requests/s)"
    plots = [
        _figure(
            line_chart, "Latency from the planned time", _latencies(points),
            x=rate, y="latency (ms)", mark=mark, log=True,
        ),
        _figure(
            line_chart, "Answers against planned requests",
            [
                Line("achieved", _xy(points, "achieved_qps")),
                Line("planned", _xy(points, "planned_qps"), color=6, dashed=True),
            ],
            x=rate, y="answers/s", mark=mark,
        ),
        _figure(bar_chart, "CPU time of an item, by process", _cpu(points), x="CPU time of an item (ms)"),
    ]  # fmt: skip
    batches = [Line("items a batch", _xy(points, "items_a_batch"))]
    plots.append(_figure(line_chart, "Batch size", batches, x=rate, y="items a batch, mean"))
    return _section("Load on the stack", found, plots, _loads_table(points))


def _baselines(found: Figures) -> str:
    sides = found["sides"]
    curves = {
        one: [
            Line(name, _xy(side["points"], f"{one}_ms"), color)
            for color, (name, side) in enumerate(sides.items())
        ]
        for one in ("p50", "p99")
    }
    throughput = {name: {"items/s": side["items_per_s_at_knee"]} for name, side in sides.items()}
    steady = {
        f"{name}, {one}": {"ms": side[f"{one}_ms_at_70"]} for name, side in sides.items() for one in curves
    }
    cpu = {name: side["at_70"][0]["cpu_ms_an_item"] for name, side in sides.items()}
    rate, time = "planned load (requests/s)", "latency (ms)"
    plots = [
        _figure(line_chart, "Median latency of each server", curves["p50"], x=rate, y=time, log=True),
        _figure(line_chart, "99th percentile of latency", curves["p99"], x=rate, y=time, log=True),
        _figure(bar_chart, "Throughput at each server's own knee", throughput, x="items/s"),
        _figure(bar_chart, "Latency at 70 % of each server's own knee", steady, x=time),
        _figure(bar_chart, "CPU time of an item there, by process", cpu, x="CPU time of an item (ms)"),
    ]
    tables = [f"<h3>{escape(name)}</h3>{_loads_table(side['points'])}" for name, side in sides.items()]
    return _section("Against servers without epd", found, plots, "\n".join(tables))


def _cold(found: Figures) -> str:
    rates, cpu = {}, {}
    for name, one in found.items():
        if isinstance(one, Mapping) and "epd_images_per_s" in one:
            rates[f"epd, {name}"] = {"images/s": _median(one["epd_images_per_s"])}
            rates[f"plain, {name}"] = {"images/s": _median(one["plain_images_per_s"])}
            cpu[f"epd, {name}"] = one["an_image"]["cpu_ms"]
            cpu[f"plain, {name}"] = {"plain pipeline": _median(one["plain_cpu_ms"])}
    plots = [
        _figure(bar_chart, "Distinct images a second", rates, x="images/s"),
        _figure(bar_chart, "CPU time of an image, by process", cpu, x="CPU time of an image (ms)"),
    ]
    return _section("Cold images against a plain pipeline", found, plots, "")


_SECTIONS: dict[str, Callable[[Figures], str]] = {"cold": _cold, "sweep": _sweep, "baselines": _baselines}


def _section(title: str, found: Figures, plots: Iterable[str], tables: str) -> str:
    note = " ".join(
        [f'<span class="device">{escape(str(found["device"]))}</span>', escape(str(found.get("traffic", "")))]
    )
    figures = f'<div class="plots">{"".join(plots)}</div>'
    return f'<h2>{escape(title)}</h2>\n<p class="note">{note}</p>\n{figures}\n{tables}'


def _figure(chart: Callable[..., str], title: str, content: object, **options: Any) -> str:
    return (
        f"<figure><figcaption>{escape(title)}</figcaption>{chart(content, title=title, **options)}</figure>\n"
    )


def _xy(points: Iterable[Figures], name: str, x: str = "planned_qps") -> list[tuple[float, float]]:
    return sorted((point[x], point[name]) for point in points if name in point)


def _latencies(points: Sequence[Figures]) -> list[Line]:
    return [
        Line(name.removesuffix("_ms"), _xy(points, name), color) for color, name in enumerate(_PERCENTILES)
    ]


def _cpu(points: Iterable[Figures]) -> dict[str, Figures]:
    return {f"{point['planned_qps']:g} requests/s": point["cpu_ms_an_item"] for point in points}


def _loads_table(points: Sequence[Figures]) -> str:
    columns = {title: name for title, name in _COLUMNS.items() if any(point.get(name) for point in points)}
    head = "".join(f"<th>{escape(title)}</th>" for title in columns)
    rows = "".join(
        f"<tr>{''.join(f'<td>{_cell(name, point.get(name))}</td>' for name in columns.values())}</tr>"
        for point in points
    )
    return f'<div class="table"><table><tr>{head}</tr>{rows}</table></div>'


def _cell(name: str, value: float | None) -> str:
    if value is None:
        return ""
    return f"{100 * value:.4g} %" if name in _SHARES else f"{value:g}"


def _median(values: Sequence[float]) -> float:
    return sorted(values)[len(values) // 2]
