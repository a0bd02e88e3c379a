"""``tidelog load``: topics into a folder of Parquet files; ``verify`` and so on look at it.

The first word is a topic unless it is ``verify``, ``history`` or ``dead-letters``; a topic of such
a name comes after ``--``.  Spark and pyarrow are imported when there is something to do for them.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from typing import Any

import click

from tidelog.client.offsets import FORMS
from tidelog.tools.load_look import dead_letters, history, verify
from tidelog.tools.load_options import need_spark, to_option
from tidelog.tools.options import advice, bootstrap_option, json_option, offset_value
from tidelog.tools.output import note
from tidelog.tools.pairs import pairs_option


class _Load(click.Command):
    """A command with more of them inside: ``load verify`` and so on."""

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
    need_spark()
    from tidelog.pipeline.option_values import OptionError, byte_count

    try:
        return byte_count("--target-bytes", value, 1)
    except OptionError as error:
        raise click.BadParameter(str(error).partition(": ")[2], ctx, param) from None


# -- load -------------------------------------------------------------------------


@click.command(cls=_Load)
@click.argument("topics", nargs=-1, metavar="[TOPIC]...")
@to_option
@click.option(
    "--from",
    "start",
    callback=offset_value,
    metavar="OFFSET",
    help=f"Where to begin: {FORMS}.  Default: where the last load into DIR ended.  What is in DIR "
    "already is not loaded again.",
)
@click.option("--until", callback=offset_value, metavar="OFFSET", help="Where to stop (exclusive).")
@click.option(
    "--every",
    type=click.FloatRange(0, min_open=True),
    metavar="MINUTES",
    help="Load every so many minutes, until Ctrl-C.",
)
@click.option(
    "--continuous",
    is_flag=True,
    help="Load new records as they come, with a streaming query, until Ctrl-C.",
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
    help="Partition columns: 'date(timestamp), hour(timestamp)', 'topic', "
    "'upper(country) as land'.",
)
@click.option(
    "--value",
    type=click.Choice(("bytes", "text", "json", "csv")),
    help="The format of values; json and csv become columns.  Default: bytes.",
)
@click.option("--schema", metavar="DDL", help="The columns of json or csv: 'user string, n int'.")
@click.option(
    "--separator", metavar="CHAR", help="The separator of csv columns.  Default: a comma."
)
@click.option("--headers/--no-headers", default=None, help="Keep headers in a column.")
@click.option(
    "--errors",
    type=click.Choice(("fail", "skip", "dead-letter")),
    default="dead-letter",
    show_default=True,
    help="What to do with records that do not decode.",
)
@click.option("--max-errors", type=click.IntRange(0), help="Fail the load if there are more.")
@click.option(
    "--dead-letters", metavar="TOPIC", help="Send dead letters to this topic as well as to DIR."
)
@click.option("--compact/--no-compact", default=True, show_default=True, help="Merge small files.")
@click.option(
    "--target-bytes",
    default="128m",
    show_default=True,
    callback=_size,
    metavar="SIZE",
    help="The target size of files.",
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
    help="If retention has deleted records that were not loaded.",
)
@click.option(
    "--on-corrupt",
    type=click.Choice(("fail", "skip")),
    default="fail",
    show_default=True,
    help="If a batch in the topic is corrupt.",
)
@click.option("--wait", is_flag=True, help="Wait for another load into DIR to finish.")
@click.option("--master", help="Where Spark runs: local[4], spark://host:7077, yarn, ...")
@pairs_option("--conf", "settings", help="A Spark setting; repeatable.")
@pairs_option(
    "--property", "properties", help="A Kafka client setting, as isolation.level=...; repeatable."
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
    settings: dict[str, str],
    properties: dict[str, str],
    bootstrap: str,
    as_json: bool,
    **options: Any,
) -> None:
    """Load TOPICs into a folder of Parquet files, each record exactly once.

    A load begins where the last one into the same folder ended; without TOPIC it loads the
    same topics again.

    \b
        tidelog load searches --to /data/searches
        tidelog load searches --to /data/searches --by 'date(timestamp)' --value json --every 5
        tidelog load searches --to /data/again --from @2026-01-01 --until @2026-01-02
        tidelog load verify --to /data/searches       offsets in = rows out
        tidelog load history --to /data/searches      every load
        tidelog load dead-letters --to /data/searches what did not decode, and why

    A topic that is called verify, history or dead-letters comes after --.
    """
    if continuous and every is not None:
        raise click.UsageError("give --every or --continuous, not both")
    if interval is not None and not continuous:
        raise click.UsageError("--interval is for --continuous; --every has minutes")
    need_spark()
    from tidelog.pipeline.lake.files import LakeError, lock
    from tidelog.pipeline.lake.ledger import LOCK
    from tidelog.pipeline.lake.load import Loader
    from tidelog.pipeline.lake.options import LoadOptions
    from tidelog.pipeline.progress import Line
    from tidelog.tools.load_run import Run, show_progress

    kafka = {"bootstrap.servers": bootstrap, **properties}
    wanted = LoadOptions(topics, to, kafka, **options)
    line = Line(enabled=not as_json)

    def spark() -> Any:
        from tidelog.pipeline.spark import session

        line.show("starting Spark")
        try:
            return session("tidelog load", master=master, settings=settings)
        except (ValueError, RuntimeError) as error:
            raise LakeError(str(error)) from error

    def waiting(holder: str) -> None:
        note(f"waiting for another load into {to} ({holder})")

    with advice(), _interrupts(), lock(wanted.root / LOCK, wait=wait, waiting=waiting):
        run = Run(line, wanted, as_json)
        loader = Loader(wanted, spark, show_progress(line), stop=run.stop)
        if continuous:
            run.continuous(loader, 60 if interval is None else interval)
        elif every is not None:
            run.every(loader, every)
        else:
            run.once(loader)


@contextlib.contextmanager
def _interrupts() -> Iterator[None]:
    try:
        yield
    except KeyboardInterrupt:  # while it waits for another load, say
        note("interrupted: nothing was loaded")
        sys.exit(130)


_INNER = {"verify": verify, "history": history, "dead-letters": dead_letters}
