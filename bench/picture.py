"""Curves as SVG text: a few lines of drawing, nothing to install."""

from __future__ import annotations

from dataclasses import dataclass
from html import escape
from math import ceil, log10

_WIDTH, _HEIGHT = 320, 200  # of the plot itself
_LEFT, _TOP, _GAP, _BELOW = 60, 80, 90, 70
_COLOURS = {"tidelog": "#0b7285", "kafka": "#e8590c"}

Curve = list[tuple[float, float]]


@dataclass(frozen=True, slots=True)
class Chart:
    """One plot: curves by name over one axis that begins at zero."""

    title: str
    x_label: str
    curves: dict[str, Curve]


def as_svg(title: str, unit: str, charts: list[Chart]) -> str:
    """The charts side by side."""
    width = _LEFT + len(charts) * (_WIDTH + _GAP)
    height = _TOP + _HEIGHT + _BELOW
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
        f'viewBox="0 0 {width} {height}" font-family="sans-serif" font-size="12">',
        f'<rect width="{width}" height="{height}" fill="white"/>',
        _text(_LEFT, 24, title, size=16),
        _text(_LEFT, 42, unit, colour="#495057"),
    ]
    for i, chart in enumerate(charts):
        parts += _draw(chart, _LEFT + i * (_WIDTH + _GAP))
    return "\n".join([*parts, "</svg>"]) + "\n"


def _draw(chart: Chart, left: float) -> list[str]:
    points = [point for curve in chart.curves.values() for point in curve]
    x_most = max(x for x, _ in points)
    y_most = _round_up(max(y for _, y in points))
    bottom = _TOP + _HEIGHT

    def place(x: float, y: float) -> tuple[float, float]:
        return left + x / x_most * _WIDTH, bottom - y / y_most * _HEIGHT

    parts = [_text(left, _TOP - 12, chart.title, size=13)]
    for step in range(5):
        value = y_most * step / 4
        _, y = place(0, value)
        parts.append(f'<path d="M{left} {y:.1f}h{_WIDTH}" stroke="#dee2e6"/>')
        parts.append(_text(left - 6, y + 4, f"{value:g}", anchor="end"))
    for x in sorted({x for x, _ in points}):
        parts.append(_text(place(x, 0)[0], bottom + 18, f"{x:g}", anchor="middle", size=10))
    parts.append(_text(left + _WIDTH / 2, bottom + 36, chart.x_label, anchor="middle"))
    for i, (name, curve) in enumerate(chart.curves.items()):
        colour = _COLOURS.get(name, "#495057")
        placed = [place(x, y) for x, y in curve]
        line = " ".join(f"{x:.1f},{y:.1f}" for x, y in placed)
        parts.append(f'<polyline points="{line}" fill="none" stroke="{colour}" stroke-width="2"/>')
        parts += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{colour}"/>' for x, y in placed]
        parts.append(_text(left + 90 * i, bottom + 56, f"\u25cf {name}", colour=colour))
    return parts


def _round_up(value: float) -> float:
    """The next 1, 2, 4 or 8 times a power of ten."""
    power = 10.0 ** (ceil(log10(value)) - 1) if value > 0 else 1.0
    return next(power * step for step in (1, 2, 4, 8, 10) if power * step >= value)


def _text(
    x: float, y: float, text: str, *, size: int = 12, anchor: str = "start", colour: str = "#212529"
) -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" text-anchor="{anchor}" '
        f'fill="{colour}">{escape(text)}</text>'
    )
