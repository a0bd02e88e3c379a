"""``tidelog load verify``, ``history`` and ``dead-letters``: what is in a destination."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from tidelog.text import plural
from tidelog.tools.load_options import need_spark, to_option
from tidelog.tools.options import json_option
from tidelog.tools.output import Column, note, show_json, show_rows, show_table, size_text
from tidelog.tools.record_json import text_or_base64
from tidelog.views.times import time_text

if TYPE_CHECKING:
    from tidelog.pipeline.lake.ledger import Manifest
    from tidelog.pipeline.lake.verify import VerifyReport


# -- verify -----------------------------------------------------------------------


@click.command()
@to_option
@click.option(
    "-b",
    "--bootstrap",
    envvar="TIDELOG_BOOTSTRAP",
    metavar="HOST:PORT,...",
    help="Addresses of brokers.  Default: those of the last load.",
)
@json_option
def verify(to: str, bootstrap: str | None, as_json: bool) -> None:
    """Prove that every offset became a row, range by range, and show what is missing."""
    need_spark()
    from tidelog.pipeline.lake import verify as verifying

    report = verifying.verify(to, bootstrap=bootstrap)
    if as_json:
        show_json(verifying.as_json(report))
    else:
        _show_verified(report, to)
    sys.exit(0 if report.ok else 1)


def _show_verified(report: VerifyReport, to: str) -> None:
    columns = ("offsets", "rows", "dead", "skipped", "lost", "holes", "missing", "doubled")
    rows: dict[tuple[str, int], list[int]] = {}
    for row in report.ranges:
        sums = rows.setdefault((row.topic, row.partition), [0] * (len(columns) + 1))
        missing = sum(end - start for start, end in row.missing)
        doubled = sum(end - start for start, end in row.doubled)
        for i, value in enumerate(
            (1, row.offsets, row.rows, row.dead, row.skipped, row.lost, row.holes, missing, doubled)
        ):
            sums[i] += value
    show_table(
        ("topic", "partition", "ranges", *columns),
        [(*place, *sums) for place, sums in sorted(rows.items())],
        right=("partition", "ranges", *columns),
    )
    for text in report.notes:
        note(f"Note: {text}")
    for text in report.problems:
        click.secho("Wrong: ", fg="red", nl=False)
        click.echo(text)
    rows_text = plural(report.total("rows"), "row")
    if report.ok:
        click.echo(f"{to}: all {rows_text} are there, each once, in {plural(report.files, 'file')}")
    else:
        click.echo(f"{to}: {plural(len(report.problems), 'problem')}")


# -- history ----------------------------------------------------------------------


@click.command()
@to_option
@json_option
def history(to: str, as_json: bool) -> None:
    """List every load into DIR, and every compaction and clean-up of its files."""
    need_spark()
    from tidelog.pipeline.lake.verify import history as read_history

    rows = [_history_row(manifest) for manifest in read_history(to)]
    if as_json:
        show_json(rows)
        return
    show_rows(rows, _HISTORY)


_HISTORY: list[Column[dict[str, Any]]] = [
    Column("load", lambda row: row["number"], right=True),
    Column("time", lambda row: row["time"]),
    Column("kind", lambda row: row["kind"]),
    Column("rows", lambda row: row["rows"], right=True),
    Column("dead", lambda row: row["dead"], right=True),
    Column("lost", lambda row: row["lost"], right=True),
    Column("files", lambda row: row["files"], right=True),
    Column("size", lambda row: size_text(row["bytes"]), right=True),
    Column("took", lambda row: f"{row['seconds']:.1f} s", right=True),
    Column("offsets", lambda row: _offsets_text(row["ranges"])),
]


def _history_row(manifest: Manifest) -> dict[str, Any]:
    return {
        "number": manifest.number,
        "time": time_text(manifest.time_ms),
        "kind": manifest.kind,
        "rows": manifest.rows,
        "dead": sum(row.dead for row in manifest.ranges),
        "skipped": sum(row.skipped for row in manifest.ranges),
        "lost": sum(end - start for row in manifest.ranges for start, end in row.lost),
        "files": len(manifest.files),
        "bytes": sum(row.bytes for row in manifest.files),
        "removed": len(manifest.removed),
        "seconds": (manifest.time_ms - manifest.started_ms) / 1000 if manifest.started_ms else 0.0,
        "host": manifest.host,
        "topics": manifest.topics,
        "ranges": [asdict(row) for row in manifest.ranges],
        "query": manifest.query,
        "settings": manifest.settings,
    }


def _offsets_text(ranges: list[dict[str, Any]]) -> str:
    shown = [f"{row['topic']}-{row['partition']}[{row['start']}:{row['end']}]" for row in ranges]
    more = f" and {len(shown) - 2} more" if len(shown) > 2 else ""
    return ", ".join(shown[:2]) + more


# -- dead letters -------------------------------------------------------------------

_SHOWN_VALUE = 60


@click.command("dead-letters")
@to_option
@click.option(
    "-n",
    "--rows",
    default=50,
    show_default=True,
    type=click.IntRange(1),
    help="The number of rows to show.",
)
@json_option
def dead_letters(to: str, rows: int, as_json: bool) -> None:
    """List the records that did not decode: where they are in their topic, and why.

    --json prints all of them, one per line and in full: `jq -r .value` gives the values, and
    `tidelog produce --json` takes the lines as they are.
    """
    need_spark()
    from tidelog.pipeline.lake.dead_letters import list_dead_letters

    found = 0
    table = []
    for row in list_dead_letters(to):
        found += 1
        if as_json:
            click.echo(json.dumps(_letter_json(row), ensure_ascii=False))
        elif found <= rows:
            value = row["value"]
            text = "(null)" if value is None else value.decode("utf-8", "backslashreplace")
            if len(text) > _SHOWN_VALUE:
                text = f"{text[:_SHOWN_VALUE]}..."
            table.append(
                (row["load"], row["topic"], row["partition"], row["offset"], row["reason"], text)
            )
    if as_json:
        return
    if not found:
        click.echo(f"{to}: no dead letters")
        return
    columns = ("load", "topic", "partition", "offset", "reason", "value")
    show_table(columns, table, right=("load", "partition", "offset"))
    if found > len(table):
        note(f"the first {len(table):,} of {found:,}; -n {found} or --json shows all")


def _letter_json(row: dict[str, Any]) -> dict[str, Any]:
    """As ``consume --json`` shows a record, and the reason."""
    microseconds = row["timestamp"]
    return {
        "topic": row["topic"],
        "partition": row["partition"],
        "offset": row["offset"],
        "timestamp": -1 if microseconds is None else microseconds // 1000,
        "key": text_or_base64(row["key"]),
        "value": text_or_base64(row["value"]),
        "headers": [[one["key"], text_or_base64(one["value"])] for one in row["headers"] or ()],
        "reason": row["reason"],
        "load": row["load"],
    }
