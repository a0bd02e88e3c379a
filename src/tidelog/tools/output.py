"""What commands print: tables for people, JSON for programs, notes on standard error.

Colour and lines only where a person looks: ``rich`` is imported when standard output is a
terminal, and otherwise the same table is plain aligned text.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Collection, Sequence
from datetime import UTC, datetime
from typing import Any

import click


def show_json(value: Any) -> None:
    click.echo(json.dumps(value, ensure_ascii=False, indent=2 if sys.stdout.isatty() else None))


def show_table(
    columns: Sequence[str],
    rows: Sequence[Sequence[Any]],
    *,
    right: Collection[str] = (),
    indent: str = "",
) -> None:
    """Rows under headings; ``right`` names the columns of numbers."""
    cells = [["" if cell is None else str(cell) for cell in row] for row in rows]
    if sys.stdout.isatty():
        _show_rich(columns, cells, right, indent)
        return
    widths = [
        max(len(column), *(len(row[i]) for row in cells)) if cells else len(column)
        for i, column in enumerate(columns)
    ]
    for row in ([column.upper() for column in columns], *cells):
        parts = [
            text.rjust(width) if column in right else text.ljust(width)
            for text, width, column in zip(row, widths, columns, strict=True)
        ]
        click.echo((indent + "  ".join(parts)).rstrip())


def _show_rich(
    columns: Sequence[str], cells: list[list[str]], right: Collection[str], indent: str
) -> None:
    from rich import box
    from rich.console import Console
    from rich.padding import Padding
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, header_style="bold")
    for column in columns:
        table.add_column(
            column.upper(), justify="right" if column in right else "left", overflow="fold"
        )
    for row in cells:
        table.add_row(*map(Text, row))
    Console(highlight=False).print(Padding(table, (0, 0, 0, len(indent))))


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


def size_text(size: float) -> str:
    """Bytes for people."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{size:.0f} {unit}" if unit == "B" or size >= 100 else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} TiB"


def time_text(milliseconds: int) -> str:
    """A record's time, in UTC to the millisecond; ``-`` if it has none."""
    if milliseconds < 0:
        return "-"
    try:
        moment = datetime.fromtimestamp(milliseconds / 1000, UTC)
    except (OverflowError, ValueError, OSError):
        return str(milliseconds)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")
