"""Plots as SVG: lines over a rate, and bars of stacked parts. Texts are escaped here."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape

from bench.encoder.report.axes import Axis, linear, logarithmic, number

_WIDTH, _HEIGHT = 620, 340
_LEFT, _RIGHT, _TOP, _BOTTOM = 70, 18, 40, 50
#: Dark enough for white text on them, and different in lightness too.
COLORS = ("#1f5fa8", "#d0561b", "#1b7f5c", "#8e4585", "#a06a00", "#3f8fb5", "#5f5f5f", "#7a1f2b")
_BAR, _BAR_GAP = 22, 12
_LABELS = 150  #: pixels for the names of bars
_LETTER = 6.6  #: pixels of a letter, about


@dataclass(frozen=True, slots=True)
class Line:
    """A line through points (x, y). ``color`` is a place in ``COLORS``."""

    name: str
    points: Sequence[tuple[float, float]]
    color: int = 0
    dashed: bool = False


def line_chart(
    lines: Sequence[Line],
    *,
    title: str,
    x: str,
    y: str,
    mark: tuple[float, str] | None = None,
    log: bool = False,
) -> str:
    """Lines over a common x axis.

    Args:
        lines: The lines, in the order of the legend.
        title: What is shown.
        x: The label of the x axis, with its unit.
        y: The same for the y axis.
        mark: An x value at which a vertical line is drawn, and its text.
        log: Whether the y axis is logarithmic.
    """
    xs = [at for line in lines for at, _ in line.points] + ([mark[0]] if mark else [])
    ys = [value for line in lines for _, value in line.points]
    across = linear(xs, _LEFT, _WIDTH - _RIGHT)
    up = (logarithmic if log else linear)(ys, _HEIGHT - _BOTTOM, _TOP)
    parts = [_grid(across, up, x, y + (" (logarithmic)" if log else ""))]
    if mark:
        parts.append(_mark(across(mark[0]), mark[1]))
    parts += [_line(line, across, up) for line in lines]
    parts.append(_legend([(line.name, line.color, line.dashed) for line in lines], _LEFT))
    return _svg(title, _HEIGHT, parts)


def bar_chart(rows: Mapping[str, Mapping[str, float]], *, title: str, x: str) -> str:
    """A horizontal bar for each row, of the parts that add up to it, with their sum behind it.

    Args:
        rows: The parts of each bar by their names; a part has the same colour in every bar.
        title: What is shown.
        x: The label of the x axis, with its unit.
    """
    names = list(dict.fromkeys(name for parts in rows.values() for name in parts))
    height = _TOP + _BOTTOM + len(rows) * (_BAR + _BAR_GAP)
    sums = [sum(parts.values()) for parts in rows.values()]
    across = linear([1.12 * one for one in sums], _LABELS, _WIDTH - 2 * _RIGHT)
    parts = [_x_grid(across, _TOP, height - _BOTTOM, x)]
    for place, (label, values) in enumerate(rows.items()):
        parts.append(_bar(label, values, names, across, _TOP + _BAR_GAP / 2 + place * (_BAR + _BAR_GAP)))
    if len(names) > 1:
        parts.append(_legend([(name, place, False) for place, name in enumerate(names)], _LEFT))
    return _svg(title, height, parts)


def _svg(title: str, height: float, parts: Iterable[str]) -> str:
    inside = "\n".join(parts)
    return (
        f'<svg viewBox="0 0 {_WIDTH} {height:g}" role="img" aria-label="{escape(title)}" '
        'xmlns="http://www.w3.org/2000/svg" font-family="system-ui, sans-serif" font-size="12">\n'
        f"{inside}\n</svg>"
    )


def _grid(across: Axis, up: Axis, x: str, y: str) -> str:
    parts = [_x_grid(across, _TOP, _HEIGHT - _BOTTOM, x)]
    for tick in up.ticks:
        at = up(tick)
        parts.append(
            f'<line x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{at:.1f}" y2="{at:.1f}" stroke="#e3e3e3"/>'
        )
        parts.append(_text(_LEFT - 7, at + 4, number(tick), anchor="end", fill="#444"))
    middle = (_TOP + _HEIGHT - _BOTTOM) / 2
    parts.append(
        f'<text transform="translate(15 {middle:g}) rotate(-90)" text-anchor="middle" fill="#222">'
        f"{escape(y)}</text>"
    )
    return "\n".join(parts)


def _x_grid(across: Axis, top: float, bottom: float, label: str) -> str:
    parts = []
    for tick in across.ticks:
        at = across(tick)
        parts.append(f'<line x1="{at:.1f}" x2="{at:.1f}" y1="{top}" y2="{bottom:g}" stroke="#e3e3e3"/>')
        parts.append(_text(at, bottom + 17, number(tick), anchor="middle", fill="#444"))
    parts.append(
        f'<line x1="{across.start}" x2="{across.stop}" y1="{bottom:g}" y2="{bottom:g}" stroke="#888"/>'
    )
    parts.append(_text((across.start + across.stop) / 2, bottom + 38, label, anchor="middle", fill="#222"))
    return "\n".join(parts)


def _line(line: Line, across: Axis, up: Axis) -> str:
    color = COLORS[line.color % len(COLORS)]
    places = [(across(at), up(value)) for at, value in line.points]
    path = " ".join(f"{left:.1f},{top:.1f}" for left, top in places)
    dash = ' stroke-dasharray="6 4"' if line.dashed else ""
    parts = [f'<polyline points="{path}" fill="none" stroke="{color}" stroke-width="2"{dash}/>']
    for (left, top), (at, value) in zip(places, line.points, strict=True):
        words = escape(f"{line.name}: {number(value)} at {number(at)}")
        parts.append(
            f'<circle cx="{left:.1f}" cy="{top:.1f}" r="3.5" fill="{color}" stroke="#fff">'
            f"<title>{words}</title></circle>"
        )
    return "\n".join(parts)


def _mark(at: float, words: str) -> str:
    late = at > _WIDTH - _RIGHT - _LETTER * len(words)
    return (
        f'<line x1="{at:.1f}" x2="{at:.1f}" y1="{_TOP}" y2="{_HEIGHT - _BOTTOM}" stroke="#333" '
        'stroke-dasharray="2 3"/>\n'
        + _text(at + (-6 if late else 6), _TOP + 13, words, anchor="end" if late else "start", fill="#333")
    )


def _bar(label: str, values: Mapping[str, float], names: Sequence[str], across: Axis, top: float) -> str:
    parts = [_text(_LABELS - 8, top + _BAR / 2 + 4, label, anchor="end", fill="#222")]
    begun = 0.0
    for name, value in values.items():
        left, right = across(begun), across(begun + value)
        color = COLORS[names.index(name) % len(COLORS)]
        words = escape(f"{label}, {name}: {number(value)}")
        parts.append(
            f'<rect x="{left:.1f}" y="{top:g}" width="{max(0.0, right - left):.1f}" height="{_BAR}" '
            f'fill="{color}" stroke="#fff"><title>{words}</title></rect>'
        )
        if len(values) > 1 and right - left > _LETTER * len(number(value)) + 6:
            middle = (left + right) / 2
            parts.append(_text(middle, top + _BAR / 2 + 4, number(value), anchor="middle", fill="#fff"))
        begun += value
    parts.append(_text(across(begun) + 6, top + _BAR / 2 + 4, number(begun), weight="600"))
    return "\n".join(parts)


def _legend(entries: Iterable[tuple[str, int, bool]], left: float) -> str:
    parts, at = [], left
    for name, color, dashed in entries:
        paint, dash = COLORS[color % len(COLORS)], ' stroke-dasharray="5 3"' if dashed else ""
        parts.append(
            f'<line x1="{at:g}" x2="{at + 20:g}" y1="18" y2="18" stroke="{paint}" stroke-width="4"{dash}/>'
        )
        parts.append(_text(at + 26, 22, name, fill="#222"))
        at += 26 + _LETTER * len(name) + 18
    return "\n".join(parts)


def _text(
    x: float, y: float, words: str, *, anchor: str = "start", fill: str = "#222", weight: str = "400"
) -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="{fill}" font-weight="{weight}">'
        f"{escape(words)}</text>"
    )
