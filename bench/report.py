"""Rows, and how they are shown: an aligned table, Markdown, JSON."""

from __future__ import annotations

import re
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

Cells = list[str]
HEADINGS: Cells = [
    "", "tidelog", "min-max", "unit", "Kafka", "min-max", "times as good",
    "loopback", "share", "floor", "share", "",
]  # fmt: skip
_NUMERIC = (1, 2, 4, 5, 6, 7, 8, 9, 10)


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
    kafka: Sequence[float] = ()
    goal: float = 1  # as good as Kafka
    floor_goal: float = 0  # as a share
    most: float = 0  # a goal without a peer

    def share(self, peer: Sequence[float]) -> float | None:
        """The median of the rounds' own ratios."""
        if not peer or not self.values:
            return None
        return statistics.median(a / b for a, b in zip(self.values, peer, strict=False) if b)

    @property
    def ratio(self) -> float | None:
        """How many times as good as Kafka: more than one is better, whatever the unit."""
        share = self.share(self.kafka)
        if share is None or not self.less_is_better:
            return share
        return 1 / share if share else None

    def shortfalls(self) -> list[str]:
        """The goals that this row misses."""
        missed = []
        if self.ratio is not None and self.ratio < self.goal:
            missed.append(f"{self.ratio:.2f} times as good as Kafka, the goal is {self.goal:g}")
        share = self.share(self.floor)
        if share is not None and share < self.floor_goal:
            missed.append(f"{share:.0%} of the floor, the goal is {self.floor_goal:.0%}")
        if self.most and (middle := statistics.median(self.values)) > self.most:
            missed.append(f"{middle:.2f} {self.unit}, the goal is {self.most:g} at most")
        return missed

    def cells(self) -> Cells:
        ratio = self.ratio
        short = bool(self.shortfalls())
        return [
            self.name,
            number(statistics.median(self.values)),
            _spread(self.values),
            self.unit,
            _middle(self.kafka),
            _spread(self.kafka),
            ("" if ratio is None else f"{ratio:.2f}") + (" !" if short else ""),
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
            "kafka": list(self.kafka),
            "loopback": list(self.loopback),
            "floor": list(self.floor),
            "times_as_good_as_kafka": self.ratio,
            "share_of_loopback": self.share(self.loopback),
            "share_of_floor": self.share(self.floor),
            "shortfalls": self.shortfalls(),
            "less_is_better": self.less_is_better,
            "note": self.note,
        }


@dataclass(slots=True)
class Section:
    """Rows that belong together, and a line that says what their peers are."""

    name: str
    caption: str
    rows: list[Row] = field(default_factory=list)


def number(value: float) -> str:
    if value >= 10_000:
        return f"{value:,.0f}"
    if value >= 100:
        return f"{value:.0f}"
    return f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def _middle(values: Sequence[float]) -> str:
    return number(statistics.median(values)) if values else ""


def _spread(values: Sequence[float]) -> str:
    if len(values) < 2:
        return ""
    return f"{number(min(values))}-{number(max(values))}"


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


_MISSED = "Rows that fall short"
_MISSED_ROW = re.compile(r"- \*\*(.+)\*\* \(.*?goal is[^)]*\)\.")


def as_markdown(
    sections: Iterable[Section],
    facts: Sequence[tuple[str, str]],
    intro: str,
    reasons: Mapping[str, str],
) -> str:
    """The file that is kept: how it was measured, a table for each section, then the reasons."""
    sections = list(sections)
    lines = ["# Benchmark results", "", intro.strip(), ""]
    lines += [f"- {name}: {value}" for name, value in facts]
    rule = "|" + "|".join("---:" if i in _NUMERIC else "---" for i in range(len(HEADINGS))) + "|"
    for section in sections:
        caption = section.caption[0].upper() + section.caption[1:]
        lines += ["", f"## {section.name}", "", f"{caption}.", ""]
        lines += ["| " + " | ".join(HEADINGS) + " |", rule]
        lines += ["| " + " | ".join(row.cells()) + " |" for row in section.rows]
    lines += ["", f"## {_MISSED}", ""]
    lines += _reasons(sections, reasons) or ["None."]
    return "\n".join(lines) + "\n"


def merge(old: str, new: str, run: str, reasons: Mapping[str, str]) -> str:
    """The sections of a later run in place of those of an earlier one, each with its date."""
    head, *before = old.split("\n## ")
    _, *after = new.split("\n## ")
    blocks = {text.partition("\n")[0]: text for text in before}
    missed = blocks.pop(_MISSED).splitlines()
    for text in after[:-1]:
        name = text.partition("\n")[0]
        blocks[name] = text.replace(".\n\n|", f".  {run}.\n\n|", 1)
        missed = [line for line in missed if not line.startswith(f"- **{name}:")]
    missed += [line for line in after[-1].splitlines() if line.startswith("- **")]
    for i, line in enumerate(missed):
        if found := _MISSED_ROW.match(line):  # the reason may have been found since
            missed[i] = f"{found[0]} {reason_for(found[1], reasons)}"
    return "\n## ".join([head, *blocks.values(), "\n".join(missed)]) + "\n"


def _reasons(sections: Iterable[Section], reasons: Mapping[str, str]) -> list[str]:
    lines = []
    for section in sections:
        for row in section.rows:
            if missed := row.shortfalls():
                name = f"{section.name}: {row.name}"
                lines.append(f"- **{name}** ({'; '.join(missed)}). {reason_for(name, reasons)}")
    return lines


def reason_for(name: str, reasons: Mapping[str, str]) -> str:
    """The note whose heading is the longest beginning of a row's name."""
    found = max((key for key in reasons if name.startswith(key)), key=len, default="")
    return reasons.get(found, "No reason is noted yet.")


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
