"""Rows, and how they are shown: an aligned table, Markdown, JSON."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

Cells = list[str]
HEADINGS: Cells = ["", "median", "min-max", "unit", "loopback", "share", "floor", "share", ""]
_NUMERIC = (1, 2, 4, 5, 6, 7)


@dataclass(slots=True)
class Row:
    """One figure: its rounds, and those of its peers, round by round."""

    name: str
    unit: str
    values: Sequence[float]
    loopback: Sequence[float] = ()
    floor: Sequence[float] = ()
    less_is_better: bool = False  # then the peer is shown as a multiple, not as a share
    note: str = ""

    def share(self, peer: Sequence[float]) -> float | None:
        """The median of the rounds' own ratios."""
        if not peer or not self.values:
            return None
        return statistics.median(a / b for a, b in zip(self.values, peer, strict=False) if b)

    def cells(self) -> Cells:
        return [
            self.name,
            _number(statistics.median(self.values)),
            _spread(self.values),
            self.unit,
            _middle(self.loopback),
            self._shown(self.loopback),
            _middle(self.floor),
            self._shown(self.floor),
            self.note,
        ]

    def _shown(self, peer: Sequence[float]) -> str:
        share = self.share(peer)
        if share is None:
            return ""
        return f"{share:.2f}x" if self.less_is_better else f"{share:.0%}"

    def as_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "unit": self.unit,
            "median": statistics.median(self.values),
            "values": list(self.values),
            "loopback": list(self.loopback),
            "floor": list(self.floor),
            "share_of_loopback": self.share(self.loopback),
            "share_of_floor": self.share(self.floor),
            "less_is_better": self.less_is_better,
            "note": self.note,
        }


@dataclass(slots=True)
class Section:
    """Rows that belong together, and a line that says what their peers are."""

    name: str
    caption: str
    rows: list[Row] = field(default_factory=list)


def _number(value: float) -> str:
    if value >= 10_000:
        return f"{value:,.0f}"
    if value >= 100:
        return f"{value:.0f}"
    return f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def _middle(values: Sequence[float]) -> str:
    return _number(statistics.median(values)) if values else ""


def _spread(values: Sequence[float]) -> str:
    if len(values) < 2:
        return ""
    return f"{_number(min(values))}-{_number(max(values))}"


def percentile(values: Sequence[float], percent: float) -> float:
    """The nearest-rank percentile."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * percent / 100))]


def as_text(sections: Iterable[Section]) -> str:
    """The table for a terminal, all sections on one grid."""
    sections = list(sections)
    grid = [HEADINGS] + [row.cells() for section in sections for row in section.rows]
    widths = [max(len(cells[i]) for cells in grid) for i in range(len(HEADINGS))]
    lines = [_line(HEADINGS, widths)]
    for section in sections:
        lines += ["", f"{section.name}: {section.caption}"]
        lines += [_line(row.cells(), widths) for row in section.rows]
    return "\n".join(lines) + "\n"


def _line(cells: Cells, widths: Sequence[int]) -> str:
    padded = [
        cell.rjust(width) if i in _NUMERIC else cell.ljust(width)
        for i, (cell, width) in enumerate(zip(cells, widths, strict=True))
    ]
    return "  ".join(padded).rstrip()


def as_markdown(sections: Iterable[Section], facts: Sequence[tuple[str, str]], intro: str) -> str:
    """The file that is kept: how it was measured, then a table for each section."""
    lines = ["# Benchmark results", "", intro.strip(), ""]
    lines += [f"- {name}: {value}" for name, value in facts]
    rule = "|" + "|".join("---:" if i in _NUMERIC else "---" for i in range(len(HEADINGS))) + "|"
    for section in sections:
        caption = section.caption[0].upper() + section.caption[1:]
        lines += ["", f"## {section.name}", "", f"{caption}.", ""]
        lines += ["| " + " | ".join(HEADINGS) + " |", rule]
        lines += ["| " + " | ".join(row.cells()) + " |" for row in section.rows]
    return "\n".join(lines) + "\n"


def in_turn(
    rounds: int, runs: dict[str, Callable[[], float]], progress: Callable[[str], None]
) -> dict[str, list[float]]:
    """Run every contender once in each round, so that a slow moment falls on all of them."""
    results: dict[str, list[float]] = {name: [] for name in runs}
    for i in range(rounds):
        for name, run in runs.items():
            results[name].append(run())
        progress(f"round {i + 1}/{rounds}")
    return results
