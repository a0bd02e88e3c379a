"""The load: plan on the driver, write in the tasks, publish files and offsets in one step.

    report = load(["searches"], "/data/searches", bootstrap="localhost:9092")

Each load begins where the last one into that destination ended.  ``start`` and ``until`` (the
offset language) name a part of the topics instead, for backfills and re-runs; what is in the
destination already is never loaded twice.
"""

from __future__ import annotations

import contextlib
import threading
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from tidelog.client.cluster import TOPIC_GONE, no_topic
from tidelog.clock import SystemClock
from tidelog.pipeline.lake import plan
from tidelog.pipeline.lake.agree import agree
from tidelog.pipeline.lake.compact import choose, compact_task
from tidelog.pipeline.lake.ddl import parse_schema
from tidelog.pipeline.lake.dead_letters import prepare_topic, send_unsent
from tidelog.pipeline.lake.destination import (
    check_columns,
    check_empty,
    check_fields,
    layout_of,
    settings_of,
    write_job,
)
from tidelog.pipeline.lake.expressions import run_through_spark, with_sample
from tidelog.pipeline.lake.files import Files, LakeError, LocalFiles, Stopped, lock
from tidelog.pipeline.lake.jobs import Progress, reported, run_tasks
from tidelog.pipeline.lake.layout import needs_spark, parse_by
from tidelog.pipeline.lake.ledger import (
    COMPACTION,
    LOAD,
    LOCK,
    FileEntry,
    Ledger,
    Manifest,
    lost_texts,
)
from tidelog.pipeline.lake.options import LoadOptions, LoadReport, position_of
from tidelog.pipeline.lake.plan import Found
from tidelog.pipeline.lake.results import file_entries, range_entries
from tidelog.pipeline.lake.schemas import to_spark_json, whole_of, with_whole
from tidelog.pipeline.lake.wanted import find_ranges, why_nothing
from tidelog.pipeline.lake.widen import SchemaChange, plan_change, widen_task
from tidelog.pipeline.lake.writing import WriteJob, too_many, write_task
from tidelog.pipeline.options import ClientOptions, OptionError, SourceOptions
from tidelog.pipeline.planner import Logs, Sizes
from tidelog.pipeline.positions import Positions
from tidelog.pipeline.ranges import OffsetRange
from tidelog.pipeline.spark_failures import explained, is_connect
from tidelog.pipeline.where import Topics
from tidelog.wire.uuids import uuid_text

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

T = TypeVar("T")

LOCAL = "localhost:9092"


def load(
    topics: str | Sequence[str],
    to: str | Path,
    *,
    bootstrap: str = LOCAL,
    spark: SparkSession | None = None,
    start: str | None = None,
    until: str | None = None,
    kafka: Mapping[str, str] | None = None,
    wait: bool = False,
    progress: Callable[[Progress], None] | None = None,
    continuous: bool = False,
    interval: float = 60.0,
    stop: threading.Event | None = None,
    **options: Any,
) -> LoadReport:
    """Load topics into a folder of Parquet files, from where the last load of it ended.

    ``options`` are the fields of :class:`LoadOptions`; ``kafka`` are settings of the client.
    With ``continuous`` it goes on until ``stop`` is set, and looks for new records every
    ``interval`` seconds; the report is then that of the last batch.  Without, a load that is
    stopped so before it is published raises ``Stopped``.
    """
    names = (topics,) if isinstance(topics, str) else tuple(topics)
    settings = {"bootstrap.servers": bootstrap, **(kafka or {})}
    wanted = LoadOptions(
        names,
        str(to),
        settings,
        start=position_of("start", start),
        until=position_of("until", until),
        **options,
    )
    with lock(wanted.root / LOCK, wait=wait):
        loader = Loader(wanted, spark, progress, stop=stop)
        if not continuous:
            return loader.run()
        from tidelog.pipeline.lake.continuous import run_continuous

        reports = [LoadReport(None)]
        run_continuous(loader, interval, reports.append)
        return reports[-1]


class Loader:
    """A destination that is open for loads; the caller holds its lock."""

    def __init__(
        self,
        options: LoadOptions,
        spark: SparkSession | Callable[[], SparkSession] | None = None,
        progress: Callable[[Progress], None] | None = None,
        files: Files | None = None,
        stop: threading.Event | None = None,
    ) -> None:
        """``spark`` may be a function that makes the session, called when it is needed.

        When ``stop`` is set, what is not published yet is given up, and ``Stopped`` is raised.
        """
        self.options = options
        self.stop = stop or threading.Event()
        self.ledger = Ledger(files or LocalFiles(options.root))
        try:
            self.client = ClientOptions.parse(
                {f"kafka.{name}": value for name, value in options.kafka.items()}
            )
        except OptionError as error:
            raise LakeError(str(error)) from None
        if is_connect(spark):
            raise LakeError(
                "loads over Spark Connect are not supported: run the load where Spark itself "
                "runs, with a session of tidelog.pipeline.session()"
            )
        self._make_spark = spark if callable(spark) else None
        self._spark = None if callable(spark) else spark
        self._progress = progress
        self._clock = SystemClock()
        self._cluster_id: str | None = None
        self._asked = False
        if self.ledger.recover().number == 0:
            check_empty(options.root)
        # Whatever is wrong with it is said before anything is read.
        layout = layout_of(options, self.ledger.state)
        self._parts = parse_by(layout["by"]) if layout["by"] else ()
        if layout["schema"]:
            parse_schema(layout["schema"])
        check_columns(self._parts, layout)

    @property
    def spark(self) -> SparkSession:
        """The session, made when there is something to do."""
        if self._spark is None:
            from tidelog.pipeline.spark import session

            self.check_stop()
            self._spark = self._make_spark() if self._make_spark else session("tidelog load")
            self.check_stop()
        return self._spark

    def check_stop(self) -> None:
        if self.stop.is_set():
            raise Stopped

    # -- one load -------------------------------------------------------------------

    @explained()
    def run(self) -> LoadReport:
        """Load what is there now; ``LoadReport.number`` is None if that was nothing."""
        began = time.monotonic()
        self.ledger.refresh()
        with contextlib.closing(Positions(self.source())) as positions:
            self.check_cluster(positions)
            logs = positions.logs()
            self.check_topics(logs)
            found = self.find_ranges(positions, logs)
            sizes = positions.sizes(logs, {part.place: part.start for part in found.ranges})
            nothing = not found.ranges and not found.lost
            why = why_nothing(self.options, positions, logs) if nothing else ""
        report = self.load_ranges(found, sizes, logs.ids)
        compacted = self.compact()
        seconds = time.monotonic() - began
        return replace(report, seconds=seconds, compacted=compacted, why_nothing=why)

    def load_ranges(
        self,
        found: Found,
        sizes: Sizes,
        ids: Mapping[str, bytes],
        query: dict[str, Any] | None = None,
    ) -> LoadReport:
        """Read these ranges, which are not in the destination, and publish them."""
        ranges, lost, begins = found
        if not ranges and not lost:
            return LoadReport(None)
        started = self._clock.now_ms()
        name = uuid.uuid4().hex
        job = self._job(name, started)
        settings = settings_of(
            self.options, self.client, layout_of(self.options, self.ledger.state)
        )
        if self.options.dead_letters is not None:
            settings["dead_letters"] = prepare_topic(self.client, self.options.dead_letters)
        self.ledger.begin(name)
        try:
            if needs_spark(job.parts) and job.schema is None and job.value in ("json", "csv"):
                job = with_sample(job, ranges)
            cores = self.spark.sparkContext.defaultParallelism if ranges else 1
            tasks = dict(enumerate(plan.pack(ranges, sizes, self.options.target_bytes, cores)))
            while True:
                results, schema = agree(job, tasks, self._run)
                added = [row for result in results for row in result["files"]]
                if added and not self.ledger.state.files and job.value in ("json", "csv"):
                    check_fields(job.parts, schema)
                change, inexact = self._widen(replace(job, schema=schema), added)
                if not inexact - whole_of(job.schema):
                    break
                job = replace(job, schema=with_whole(job.schema, inexact))
            manifest = Manifest(
                LOAD,
                name,
                cluster=self._cluster_id,
                topics={
                    topic: uuid_text(topic_id) for topic, topic_id in ids.items() if any(topic_id)
                },
                ranges=tuple(
                    sorted(
                        [*lost, *range_entries(results)],
                        key=lambda row: (row.topic, row.partition, row.start),
                    )
                ),
                begins=begins,
                removed=change.removed,
                schema=schema,
                settings=settings,
                query=query,
                started_ms=started,
                **file_entries(
                    [*change.files, *change.rewritten],
                    [row for result in results for row in result["letters"]],
                ),
            )
            self._check_errors(manifest)
            self.check_stop()
        except BaseException:
            self.ledger.abandon(name)
            raise
        number = self.ledger.publish(manifest).number
        send_unsent(self.ledger, self.client, self.options.root, again=False)
        return LoadReport(
            number,
            manifest.rows,
            sum(row.dead for row in manifest.ranges),
            sum(row.skipped for row in manifest.ranges),
            sum(end - begin for row in manifest.ranges for begin, end in row.lost),
            len(change.files),
            sum(row["bytes"] for row in change.files),
            new_columns=change.new_columns,
            widened=change.widened,
            lost_offsets=tuple(lost_texts(manifest.ranges)),
        )

    def compact(self) -> int:
        """Merge small files; how many fewer there are."""
        fewer = 0
        while self.options.compact:
            groups = choose(self.ledger.state, self.options.target_bytes)
            if not groups:
                break
            started = self._clock.now_ms()
            name = uuid.uuid4().hex
            job = replace(self._job(name, started), schema=self.ledger.state.schema)
            self.ledger.begin(name)

            def work(row: tuple[int, tuple[FileEntry, ...]], job: WriteJob = job) -> dict[str, Any]:
                return compact_task(job, *row)

            try:
                files = self._rewrite("merging files", job, groups, work)
            except Stopped:  # the next load will do it
                self.ledger.abandon(name)
                break
            except BaseException:
                self.ledger.abandon(name)
                raise
            removed = tuple(entry.path for group in groups for entry in group)
            self.ledger.publish(
                Manifest(
                    COMPACTION,
                    name,
                    removed=removed,
                    started_ms=started,
                    **file_entries(files),
                )
            )
            fewer += len(removed) - len(files)
        return fewer

    def _widen(
        self, job: WriteJob, added: Sequence[dict[str, Any]]
    ) -> tuple[SchemaChange, set[str]]:
        """Give all files the types that the columns have now, for readers who expect one type;
        also the columns for which that would round numbers."""
        change = plan_change(self.ledger.state, job.schema, added)
        if not change.narrow:
            return change, set()

        def work(row: tuple[int, tuple[FileEntry, ...]]) -> list[dict[str, Any] | None]:
            return widen_task(job, *row)

        groups = change.groups(self.options.target_bytes)
        results = [
            row for rows in self._rewrite("widening columns", job, groups, work) for row in rows
        ]
        inexact = {row["inexact"] for row in results if row and "inexact" in row}
        return (change, inexact) if inexact else (change.after(results), inexact)

    def _rewrite(
        self,
        title: str,
        job: WriteJob,
        groups: Sequence[tuple[FileEntry, ...]],
        work: Callable[[tuple[int, tuple[FileEntry, ...]]], T],
    ) -> list[T]:
        """Write files again, into the staging folder; each group is a task."""

        def watch() -> None:
            self.check_stop()
            self.ledger.still_alive(job.load)
            if self._progress is not None:
                self._progress(Progress(0, 0, 0, 0, 0.0, title))

        return run_tasks(self.spark, f"tidelog load: {title}", list(enumerate(groups)), work, watch)

    # -- planning -------------------------------------------------------------------

    def source(self) -> SourceOptions:
        """The topics, for those who ask the cluster about them."""
        known = {place.topic for place in self.ledger.state.covered}
        names = self.options.topics or tuple(sorted(known))
        if not names:
            raise LakeError("which topics? The destination is new: name them")
        return SourceOptions(self.client, Topics(subscribe=tuple(dict.fromkeys(names))))

    def check_cluster(self, positions: Positions) -> None:
        """The same offsets are other records in another cluster."""

        def ask() -> str | None:
            with self.client.cluster() as cluster:
                found = cluster.metadata([] if self._asked else self.source().topics.names)
                for view in found.topics.values():
                    if view.error in TOPIC_GONE:
                        raise no_topic(view.name, cluster.topic_names())
                return found.cluster_id

        # Nobody waits a minute to hear of a wrong address; later on a broker may be restarting.
        self._cluster_id = positions.retried(ask) if self._asked else ask()
        self._asked = True
        known = self.ledger.state.cluster
        if known and self._cluster_id and known != self._cluster_id:
            raise LakeError(
                f"{self.options.to} holds records of cluster {known}, and this is cluster "
                f"{self._cluster_id}: the same offsets are other records there; load into another "
                "directory"
            )

        # Only now: what a dead process left to be sent is for the topics of this cluster.
        send_unsent(self.ledger, self.client, self.options.root, again=True)

    def check_topics(self, logs: Logs) -> None:
        """And so they are in a topic that was made again."""
        for topic, topic_id in logs.ids.items():
            known = self.ledger.state.topics.get(topic)
            if known and any(topic_id) and known != uuid_text(topic_id):
                raise LakeError(
                    f"topic {topic!r} was deleted and created again since it was loaded into "
                    f"{self.options.to} (its id was {known} and is {uuid_text(topic_id)}): its "
                    "offsets are other records now; load it into another directory"
                )

    def find_ranges(self, positions: Positions, logs: Logs) -> Found:
        """What is to be read, what is lost, and where the others begin."""
        return find_ranges(self.options, self.ledger.state, positions, logs)

    def _job(self, name: str, started: int) -> WriteJob:
        layout = layout_of(self.options, self.ledger.state)
        schema = self.ledger.state.schema
        if layout["schema"]:
            schema = to_spark_json(parse_schema(layout["schema"]))
        return write_job(self.options, self.client, layout, self._parts, schema, name, started)

    # -- the tasks --------------------------------------------------------------------

    def _run(
        self, job: WriteJob, tasks: Mapping[int, tuple[OffsetRange, ...]]
    ) -> dict[int, dict[str, Any]]:
        """What came of each task."""
        if not tasks:
            return {}
        for path in job.staging.glob("*.progress"):
            path.unlink()
        began = time.monotonic()
        offsets = sum(len(part) for parts in tasks.values() for part in parts)

        def watch() -> None:
            self.check_stop()
            self.ledger.still_alive(job.load)
            rows, done, problem = reported(job.staging)
            if problem is not None:
                raise LakeError(problem)
            if self._progress is not None:
                seconds = time.monotonic() - began
                self._progress(Progress(rows, offsets, done, len(tasks), seconds))

        def work(row: tuple[int, tuple[OffsetRange, ...]]) -> dict[str, Any]:
            return write_task(job, *row)

        if needs_spark(job.parts):
            results = run_through_spark(self.spark, job, tasks, watch)
        else:
            results = run_tasks(self.spark, "tidelog load", list(tasks.items()), work, watch)
        for result in results:
            if "error" in result:
                raise LakeError(result["error"])
        return {result["task"]: result for result in results}

    def _check_errors(self, manifest: Manifest) -> None:
        bad = sum(row.dead + row.skipped for row in manifest.ranges)
        most = self.options.max_errors
        if most is not None and bad > most:
            place = next(row for row in manifest.ranges if row.dead or row.skipped)
            raise LakeError(too_many(bad, most, f"in {place.place}[{place.start}:{place.end}]"))
