"""``tidelog load``: topics into a folder of Parquet files; ``verify`` and ``history`` of it.

The first word is a topic unless it is ``verify`` or ``history``; a topic of such a name comes
after ``--``.  Spark and pyarrow are imported when there is something to do for them.
"""

from __future__ import annotations

import contextlib
import importlib.util
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

import click

from tidelog.client.connection import CannotConnect
from tidelog.text import plural
from tidelog.tools.options import bootstrap_option, json_option, offset_value
from tidelog.tools.output import note, show_json, show_table, size_text, time_text
from tidelog.tools.pairs import pairs

if TYPE_CHECKING:
    from tidelog.pipeline.lake.jobs import Progress
    from tidelog.pipeline.lake.ledger import Manifest
    from tidelog.pipeline.lake.options import LoadReport
    from tidelog.pipeline.lake.verify import VerifyReport

_to_option = click.option(
    "--to", required=True, metavar="DIR", help="The folder that holds, or will hold, the files."
)


class _Load(click.Command):
    """A command with two more inside: ``load verify`` and ``load history``."""

    def make_context(
        self,
        info_name: str | None,
        args: list[str],
        parent: click.Context | None = None,
        **extra: Any,
    ) -> click.Context:
        inner = _INNER.get(args[0]) if args else None
        if inner is not None:
            return inner.make_context(f"{info_name} {args[0]}", args[1:], parent, **extra)
        return super().make_context(info_name, args, parent, **extra)


def _size(ctx: click.Context, param: click.Parameter, value: str) -> int:
    _need_spark()
    from tidelog.pipeline.option_values import OptionError, byte_count

    try:
        return byte_count("--target-bytes", value, 1)
    except OptionError as error:
        raise click.BadParameter(str(error).partition(": ")[2], ctx, param) from None


def _need_spark() -> None:
    """A sentence instead of a stack trace, where the extra is not installed."""
    from tidelog.java import NotInstalled

    if any(importlib.util.find_spec(name) is None for name in ("pyspark", "pyarrow", "numba")):
        raise NotInstalled('tidelog load needs PySpark: pip install "tidelog[spark]"')


# -- load -------------------------------------------------------------------------


@click.command(cls=_Load)
@click.argument("topics", nargs=-1, metavar="[TOPIC]...")
@_to_option
@click.option(
    "--from",
    "start",
    callback=offset_value,
    metavar="OFFSET",
    help="Where to begin: start, end, N, +N, -N, @TIME, -48h.  Default: where the last load into "
    "DIR ended.  What is in DIR already is not loaded again.",
)
@click.option("--until", callback=offset_value, metavar="OFFSET", help="Where to stop (exclusive).")
@click.option(
    "--every",
    type=click.FloatRange(0, min_open=True),
    metavar="MINUTES",
    help="Load again and again, until Ctrl-C.",
)
@click.option(
    "--continuous", is_flag=True, help="Load what comes, as a streaming query, until Ctrl-C."
)
@click.option(
    "--interval",
    type=click.FloatRange(0),
    metavar="SECONDS",
    help="How often --continuous looks for new records.  Default: 60.",
)
@click.option(
    "--by",
    metavar="EXPRESSIONS",
    help="Folders: 'date(timestamp), hour(timestamp)', 'topic', 'upper(country) as land'.",
)
@click.option(
    "--value",
    type=click.Choice(("bytes", "text", "json", "csv")),
    help="What values are; json and csv become columns.  Default: bytes.",
)
@click.option("--schema", metavar="DDL", help="The columns of json or csv: 'user string, n int'.")
@click.option(
    "--separator", metavar="CHAR", help="Between the columns of csv; a comma if not said."
)
@click.option("--headers/--no-headers", default=None, help="Keep headers, in a column.")
@click.option(
    "--errors",
    type=click.Choice(("fail", "skip", "dead-letter")),
    default="dead-letter",
    show_default=True,
    help="What to do with records that do not decode.",
)
@click.option("--max-errors", type=click.IntRange(0), help="Load nothing if there are more.")
@click.option(
    "--dead-letters",
    metavar="TOPIC",
    help="Send dead letters to a topic as well; without it they are only in DIR.",
)
@click.option("--compact/--no-compact", default=True, show_default=True, help="Merge small files.")
@click.option(
    "--target-bytes",
    default="128m",
    show_default=True,
    callback=_size,
    metavar="SIZE",
    help="How large files shall be.",
)
@click.option(
    "--compression",
    type=click.Choice(("snappy", "zstd", "lz4", "gzip", "none")),
    default="snappy",
    show_default=True,
)
@click.option(
    "--on-loss",
    type=click.Choice(("fail", "skip")),
    default="fail",
    show_default=True,
    help="When retention was faster than the loads.",
)
@click.option(
    "--on-corrupt",
    type=click.Choice(("fail", "skip")),
    default="fail",
    show_default=True,
    help="When a batch in the topic is damaged.",
)
@click.option("--wait", is_flag=True, help="If another load into DIR is at work, wait for it.")
@click.option("--master", help="Where Spark runs: local[4], spark://host:7077, yarn, ...")
@click.option("--conf", "settings", multiple=True, metavar="KEY=VALUE", help="A setting of Spark.")
@click.option(
    "--property",
    "properties",
    multiple=True,
    metavar="KEY=VALUE",
    help="A setting of the Kafka client, as isolation.level=read_committed.",
)
@bootstrap_option
@json_option
def load(
    topics: tuple[str, ...],
    to: str,
    every: float | None,
    continuous: bool,
    interval: float | None,
    wait: bool,
    master: str | None,
    settings: tuple[str, ...],
    properties: tuple[str, ...],
    bootstrap: str,
    as_json: bool,
    **options: Any,
) -> None:
    """Load TOPICs into a folder of Parquet files, each record exactly once.

    A load begins where the last one into the same folder ended; without TOPIC it loads the
    topics of the last ones.

    \b
        tidelog load searches --to /data/searches
        tidelog load searches --to /data/searches --by 'date(timestamp)' --value json --every 5
        tidelog load searches --to /data/again --from @2026-01-01 --until @2026-01-02
        tidelog load verify --to /data/searches       offsets in = rows out
        tidelog load history --to /data/searches      every load

    A topic that is called verify or history comes after --.
    """
    if continuous and every is not None:
        raise click.UsageError("--every or --continuous, not both")
    if interval is not None and not continuous:
        raise click.UsageError("--interval is for --continuous; --every has minutes")
    _need_spark()
    from tidelog.pipeline.lake.continuous import run_continuous
    from tidelog.pipeline.lake.files import LakeError, lock
    from tidelog.pipeline.lake.ledger import LOCK
    from tidelog.pipeline.lake.load import Loader
    from tidelog.pipeline.lake.options import LoadOptions
    from tidelog.pipeline.progress import Line

    kafka = {"bootstrap.servers": bootstrap, **pairs(properties, "--property")}
    wanted = LoadOptions(topics, to, kafka, **options)
    spark_settings = pairs(settings, "--conf")
    line = Line(enabled=not as_json)

    def spark() -> Any:
        from tidelog.pipeline.spark import session

        try:
            return session("tidelog load", master=master, settings=spark_settings)
        except (ValueError, RuntimeError) as error:
            raise LakeError(str(error)) from error

    def waiting(holder: str) -> None:
        note(f"waiting for another load into {to} ({holder})")

    with _hint(), lock(wanted.root / LOCK, wait=wait, waiting=waiting):
        loader = Loader(wanted, spark, _show_progress(line))

        def show(report: LoadReport) -> None:
            _show_report(report, to, as_json, line)

        if continuous:
            run_continuous(loader, 60 if interval is None else interval, show, _stop_on_term())
        else:
            show(loader.run())
            # --from is for the first one; the others go on where the ledger ends.
            loader.options = replace(loader.options, start=None)
            _repeat(lambda: show(loader.run()), every)


@contextlib.contextmanager
def _hint() -> Iterator[None]:
    try:
        yield
    except CannotConnect as error:
        raise CannotConnect(
            f"{error}; start one with `tidelog up`, or name another with -b"
        ) from error


def _stop_on_term() -> threading.Event:
    """SIGTERM ends a continuous load, as Ctrl-C does, but as a success."""
    stop = threading.Event()
    with contextlib.suppress(ValueError):  # not the main thread
        signal.signal(signal.SIGTERM, lambda *_: stop.set())
    return stop


def _repeat(work: Callable[[], None], minutes: float | None) -> None:
    """At every full interval from now on; not at all without one."""
    began = time.monotonic()
    while minutes is not None:
        passed = time.monotonic() - began
        time.sleep(60 * minutes - passed % (60 * minutes))
        work()


def _show_progress(line: Any) -> Callable[[Progress], None]:
    from tidelog.pipeline.progress import duration

    def show(progress: Progress) -> None:
        left = progress.seconds_left
        line.show(
            f"{progress.share:4.0%}, {plural(progress.rows, 'record')}, "
            f"{round(progress.rows_per_second):,} records/s, "
            f"{progress.tasks_done} of {plural(progress.tasks, 'task')}"
            + (f", about {duration(left)} to go" if left else "")
        )

    return show


def _show_report(report: LoadReport, to: str, as_json: bool, line: Any) -> None:
    line.end()
    if as_json:
        show_json(asdict(report))
        return
    if report.number is None:
        click.echo(f"nothing new for {to}")
        return
    parts = [f"{plural(report.rows, 'record')} to {to} in {plural(report.files, 'file')}"]
    parts.append(size_text(report.bytes))
    if report.dead:
        parts.append(f"{plural(report.dead, 'dead letter')}")
    if report.skipped:
        parts.append(f"{report.skipped:,} skipped")
    if report.lost:
        parts.append(f"{plural(report.lost, 'offset')} lost")
    if report.compacted:
        parts.append(f"{plural(report.compacted, 'small file')} merged")
    click.echo(f"{', '.join(parts)} (load {report.number}, {report.seconds:.1f} s)")
    if report.new_columns:
        click.echo(f"  new {_noun(report.new_columns)}: {', '.join(report.new_columns)}")
    for row in report.widened:
        files = f"{plural(row.rewritten, 'file')} rewritten"
        if row.kept:
            files += (
                f"; {plural(row.kept, 'file')} left as {row.before}, with numbers that a "
                f"{row.after} would round"
            )
        click.echo(f"  {row.column}: {row.before} → {row.after} ({files})")


def _noun(columns: Sequence[str]) -> str:
    return "column" if len(columns) == 1 else "columns"


# -- verify -----------------------------------------------------------------------


@click.command()
@_to_option
@click.option(
    "-b",
    "--bootstrap",
    envvar="TIDELOG_BOOTSTRAP",
    metavar="HOST:PORT,...",
    help="Where the brokers are.  Default: where they were at the last load.",
)
@json_option
def verify(to: str, bootstrap: str | None, as_json: bool) -> None:
    """Prove that offsets in are rows out, range by range, and say what is missing."""
    _need_spark()
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
@_to_option
@json_option
def history(to: str, as_json: bool) -> None:
    """List every load into DIR, and every merge and cleaning of its files."""
    _need_spark()
    from tidelog.pipeline.lake.verify import history as read_history

    rows = [_history_row(manifest) for manifest in read_history(to)]
    if as_json:
        show_json(rows)
        return
    columns = ("load", "time", "kind", "rows", "dead", "lost", "files", "size", "took", "offsets")
    show_table(
        columns,
        [
            (
                row["number"],
                row["time"],
                row["kind"],
                row["rows"],
                row["dead"],
                row["lost"],
                row["files"],
                size_text(row["bytes"]),
                f"{row['seconds']:.1f} s",
                _offsets_text(row["ranges"]),
            )
            for row in rows
        ],
        right=("load", "rows", "dead", "lost", "files", "size", "took"),
    )


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


_INNER = {"verify": verify, "history": history}
