"""What commands print: tables for people, JSON for programs, notes on standard error.

The rows of a command are plain data, dataclasses mostly.  They are the JSON as they are, and a
list of :class:`Column` says which of it a table shows.

Colour and lines only where a person looks: ``rich`` is imported when standard output is a
terminal, and otherwise the same table is plain aligned text.  There a table that is too wide
for the terminal is made narrower with ``short``; in a pipe everything is whole.

Clients choose names, ids and keys.  Whatever they choose, a terminal must not obey it: tables
and messages are ``printable``.
"""

from __future__ import annotations

import json
import re
import shutil
import sys
import textwrap
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Generic, NoReturn, Protocol, TypeVar

import click

from tidelog.clock import SystemClock
from tidelog.text import plural, some
from tidelog.views.times import time_text

T = TypeVar("T")
Shorten = Callable[[str], str]

_ID = re.compile(r"(\S*?)(-?)([0-9a-f]{4})[0-9a-f]{4}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12}")
_BASE64_ID = re.compile(r"[A-Za-z0-9+/_-]{22}")  # librdkafka's, with the consumer protocol
_NAME_IN_ID = 8
_TIME = re.compile(r"(\d{4}-(\d\d-\d\d))T(\d\d:\d\d:\d\d)\.\d{3}Z")


@dataclass(frozen=True, slots=True)
class Column(Generic[T]):
    """A column of a table: its heading, and what it shows of a row."""

    title: str
    cell: Callable[[T], object]
    right: bool = False  # a column of numbers
    short: Shorten = str  # how a cell is made shorter where the terminal is too narrow


def show(rows: Sequence[T], columns: Sequence[Column[T]], as_json: bool, empty: str) -> None:
    """Rows of plain data as JSON or as a table; ``empty`` is the text if there are none."""
    if as_json:
        show_json(rows)
    elif rows:
        show_rows(rows, columns)
    else:
        click.echo(empty)


class Result(Protocol):
    """What became of one thing that a command was given; ``error`` is None, or a sentence."""

    @property
    def error(self) -> str | None: ...


R = TypeVar("R", bound=Result)


def show_results(results: Sequence[R], as_json: bool, text: Callable[[R], str]) -> NoReturn:
    """What became of each; ends the command, with exit code 1 if one has failed."""
    show_each(results, as_json, text)
    sys.exit(1 if any(result.error for result in results) else 0)


def show_each(results: Sequence[R], as_json: bool, text: Callable[[R], str]) -> None:
    """What became of each."""
    if as_json:
        show_json(results)
    for result in results:
        if result.error is not None:
            complain(result.error)
        elif not as_json:
            click.echo(text(result))


def show_json(value: Any) -> None:
    """Dataclasses are objects, with their fields as keys."""
    indent = 2 if sys.stdout.isatty() else None
    click.echo(json.dumps(value, ensure_ascii=False, indent=indent, default=_object))


def _object(value: Any) -> dict[str, Any]:
    """A field whose name would be a keyword has an underscore behind it (``from_``)."""
    return {row.name.rstrip("_"): getattr(value, row.name) for row in fields(value)}


def show_rows(rows: Sequence[T], columns: Sequence[Column[T]], indent: str = "") -> None:
    show_table(
        [column.title for column in columns],
        [[column.cell(row) for column in columns] for row in rows],
        right={column.title for column in columns if column.right},
        indent=indent,
        short={column.title: column.short for column in columns if column.short is not str},
    )


def printable(text: str) -> str:
    """Text with escapes for what moves a cursor, rings a bell or turns a line around."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def short_id(text: str) -> str:
    """A member id with as much of its name and its UUID as it takes to tell it from others."""

    def shorten(match: re.Match[str]) -> str:
        name, hyphen, start = match.groups()
        if len(name) > _NAME_IN_ID:
            name, hyphen = name[: _NAME_IN_ID - 1], "…"
        return f"{name}{hyphen}{start}…"

    if _BASE64_ID.fullmatch(text):
        return f"{text[:4]}…"
    return _ID.sub(shorten, text)


def short_time(text: str) -> str:
    """What ``time_text`` gave, to the second; with the day only if that is not today."""
    today = time_text(SystemClock().now_ms())[:10]
    return _TIME.sub(lambda m: m[3] if m[1] == today else f"{m[2]} {m[3]}", text)


def show_table(
    columns: Sequence[str],
    rows: Sequence[Sequence[Any]],
    *,
    right: Collection[str] = (),
    indent: str = "",
    short: Mapping[str, Shorten] | None = None,
) -> None:
    """Rows under headings; ``right`` names the columns of numbers.

    ``short`` says which columns can be shortened, and how.
    """
    cells = [["" if cell is None else printable(str(cell)) for cell in row] for row in rows]
    if sys.stdout.isatty():
        _show_rich(columns, cells, right, indent, short or {})
        return
    widths = _widths(columns, cells)
    lines = []
    for row in ([column.upper() for column in columns], *cells):
        parts = [
            text.rjust(width) if column in right else text.ljust(width)
            for text, width, column in zip(row, widths, columns, strict=True)
        ]
        lines.append((indent + "  ".join(parts)).rstrip())
    click.echo("\n".join(lines))  # at once: each echo costs more than the line


def _widths(columns: Sequence[str], cells: list[list[str]]) -> list[int]:
    return [max(len(name), *(len(row[i]) for row in cells), 0) for i, name in enumerate(columns)]


def _show_rich(
    columns: Sequence[str],
    cells: list[list[str]],
    right: Collection[str],
    indent: str,
    short: Mapping[str, Shorten],
) -> None:
    from rich import box
    from rich.console import Console
    from rich.padding import Padding
    from rich.table import Table
    from rich.text import Text

    console = Console(highlight=False)
    if len(indent) + sum(width + 3 for width in _widths(columns, cells)) - 3 > console.width:
        shorten = [short.get(column, str) for column in columns]
        cells = [[how(cell) for how, cell in zip(shorten, row, strict=True)] for row in cells]
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, header_style="bold")
    for column in columns:
        table.add_column(
            column.upper(),
            justify="right" if column in right else "left",
            overflow="fold",
            no_wrap=column in right or column in short,
        )
    for row in cells:
        table.add_row(*map(Text, row))
    console.print(Padding(table, (0, 0, 0, len(indent))))


def say(text: str) -> None:
    """A line about members; on a terminal their ids are short."""
    text = printable(text)
    click.echo(short_id(text) if sys.stdout.isatty() else text)


def paragraph(text: str) -> None:
    """A long sentence: in lines on a terminal, whole in a pipe."""
    if sys.stdout.isatty():
        text = textwrap.fill(text, shutil.get_terminal_size().columns)
    click.echo(text)


def note(text: str) -> None:
    """Something to know that is not the output."""
    click.echo(text, err=True)


def warn(text: str) -> None:
    click.secho("Warning: ", fg="yellow", nl=False, err=True)
    click.echo(text, err=True)


def complain(text: str) -> None:
    """An error after which the command goes on; the caller exits with 1 at the end."""
    click.secho("Error: ", fg="red", bold=True, nl=False, err=True)
    click.echo(text, err=True)


def complain_of(failed: Mapping[tuple[str, int], str]) -> None:
    """Why partitions failed: a line for each reason, however many it is true of."""
    reasons: dict[str, list[str]] = {}
    for (name, index), reason in failed.items():
        reasons.setdefault(reason, []).append(f"{name}-{index}")
    for reason, names in reasons.items():
        count = f"{plural(len(names), 'partition')} ({some(names)})"
        complain(f"{count if len(names) > 1 else names[0]}: {reason}")


def size_text(size: float) -> str:
    """Bytes for people."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{size:.0f} {unit}" if unit == "B" or size >= 100 else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} TiB"
