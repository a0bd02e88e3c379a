"""``tidelog log``: dump and check log files on disk, with or without a running broker."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import asdict

import click

from tidelog.errors import ApiError, ErrorCode
from tidelog.text import plural
from tidelog.tools.command_group import CommandGroup
from tidelog.tools.log_check import check_path
from tidelog.tools.log_dump import dump_file, known_files, text_of
from tidelog.tools.log_segments import LogReport
from tidelog.tools.options import json_option
from tidelog.tools.output import complain, show_json, size_text

_paths = click.argument(
    "paths", nargs=-1, required=True, type=click.Path(exists=True), metavar="PATH..."
)


@click.group(cls=CommandGroup)
def log() -> None:
    """Dump and check log files on disk (read-only; the broker may be running)."""


@log.command()
@_paths
@click.option("--records", is_flag=True, help="Include the keys, values and headers of records.")
@click.option("--json", "as_json", is_flag=True, help="Print lines of JSON.")
def dump(paths: tuple[str, ...], records: bool, as_json: bool) -> None:
    """Show the contents of segments, indexes, snapshots and checkpoints.

    PATH is such a file, or the directory of a partition.
    """
    failed = False
    for path in paths:
        files = known_files(path) if os.path.isdir(path) else [path]
        if not files:
            raise ApiError(
                ErrorCode.INVALID_REQUEST,
                f"{path} holds no file of a log: give the directory of a partition (topic-0)",
            )
        for file in files:
            if not as_json and (len(paths) > 1 or len(files) > 1):
                click.secho(file, bold=True)
            try:
                for row in dump_file(file, records=records):
                    failed = failed or bool(row.get("fault"))
                    if as_json:
                        click.echo(json.dumps({"file": file, **row}, ensure_ascii=False))
                    else:
                        click.echo("\n".join(text_of(row)))
            except ValueError as error:
                failed = True
                complain(f"{file}: {error}")
    sys.exit(1 if failed else 0)


@log.command()
@_paths
@click.option("--records", is_flag=True, help="Decode every record as well (slower).")
@json_option
def check(paths: tuple[str, ...], records: bool, as_json: bool) -> None:
    """Check every batch, index, snapshot and checkpoint; exit code 1 if something is wrong.

    PATH is a data directory, or the directory of a partition.
    """
    reports: list[LogReport] = []
    for path in paths:
        if not os.path.isdir(path):
            message = f"{path} is a file: check its directory, or use `tidelog log dump`"
            raise click.BadParameter(message, param_hint="PATH")
        found = check_path(path, deep=records)
        if not found:
            raise ApiError(
                ErrorCode.INVALID_REQUEST,
                f"{path} holds no logs: give a data directory (--data of `tidelog up`), "
                "or the directory of a partition (topic-0)",
            )
        reports += found
    damaged = any(report.problems for report in reports)
    if as_json:
        show_json(
            {
                "sound": not damaged,
                "logs": [{**asdict(report), "sound": not report.problems} for report in reports],
            }
        )
    else:
        for report in reports:
            _show(report)
    sys.exit(1 if damaged else 0)


def _show(report: LogReport) -> None:
    sound = not report.problems
    click.secho("sound    " if sound else "DAMAGED  ", fg="green" if sound else "red", nl=False)
    facts = ""
    if report.segments:
        facts = (
            f": offsets {report.start_offset} to {report.end_offset}, "
            f"{plural(report.segments, 'segment')}, {plural(report.batches, 'batch')}, "
            f"{plural(report.records, 'record')}, {size_text(report.bytes)}"
        ).replace("batchs", "batches")
    click.echo(f"{report.directory}{facts}")
    for problem in report.problems:
        where = os.path.basename(problem.file)
        if problem.position is not None:
            where += f" position {problem.position}"
        if problem.offset is not None:
            where += f" offset {problem.offset}"
        click.echo(f"  {where}: {problem.problem}")
        click.echo(f"    {problem.recovery}")
