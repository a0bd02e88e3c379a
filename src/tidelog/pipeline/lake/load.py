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
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tidelog.client.cluster import TOPIC_GONE, no_topic
from tidelog.clock import SystemClock
from tidelog.pipeline.lake.ddl import parse_schema
from tidelog.pipeline.lake.dead_letters import prepare_topic, send_unsent
from tidelog.pipeline.lake.driver import Driver
from tidelog.pipeline.lake.files import Files, LakeError, LocalFiles, Stopped, lock
from tidelog.pipeline.lake.jobs import Progress
from tidelog.pipeline.lake.layout import Layout
from tidelog.pipeline.lake.ledger import (
    COMPACTION,
    LOAD,
    LOCK,
    Ledger,
    Manifest,
    lost_texts,
    with_schemas,
)
from tidelog.pipeline.lake.options import (
    LoadOptions,
    LoadReport,
    check_columns,
    check_empty,
    layout_of,
    position_of,
    settings_of,
)
from tidelog.pipeline.lake.plan import Work, find_ranges, why_nothing
from tidelog.pipeline.lake.rewriting import choose
from tidelog.pipeline.lake.schemas import to_spark_json
from tidelog.pipeline.lake.writing import WriteJob, too_many
from tidelog.pipeline.options import ClientOptions, OptionError, SourceOptions
from tidelog.pipeline.planner import Logs, Sizes
from tidelog.pipeline.positions import Positions
from tidelog.pipeline.spark_failures import explained, is_connect
from tidelog.pipeline.where import Topics
from tidelog.wire.uuids import uuid_text

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

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
        self._driver = Driver(lambda: self.spark, self.ledger, self.check_stop, progress)
        self._clock = SystemClock()
        self._cluster_id: str | None = None
        self._asked = False
        if self.ledger.recover().number == 0:
            check_empty(options.root)
        # What is wrong with it is reported before anything is read.
        layout = self._layout
        self._parts = layout.parts()
        if layout.schema:
            parse_schema(layout.schema)
        check_columns(self._parts, layout)

    @property
    def _layout(self) -> Layout:
        return layout_of(self.options, self.ledger.state)

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
            work = self.find_ranges(positions, logs)
            sizes = positions.sizes(logs, {part.tp: part.start for part in work.ranges})
            nothing = not work.ranges and not work.lost
            why = why_nothing(self.options, positions, logs) if nothing else ""
        report = self.load_ranges(work, sizes, logs.ids)
        compacted = self.compact()
        seconds = time.monotonic() - began
        return replace(report, seconds=seconds, compacted=compacted, why_nothing=why)

    def load_ranges(
        self,
        work: Work,
        sizes: Sizes,
        ids: Mapping[str, bytes],
        query: dict[str, Any] | None = None,
    ) -> LoadReport:
        """Read these ranges, which are not in the destination, and publish them."""
        if not work.ranges and not work.lost:
            return LoadReport(None)
        job = self._job()
        settings = settings_of(self.options, self.client, job.layout)
        if self.options.dead_letters is not None:
            settings["dead_letters"] = prepare_topic(self.client, self.options.dead_letters)
        with self._staged(job):
            results, schema, change = self._driver.write(job, work.ranges, sizes)
            ranges = [*work.lost, *(row for result in results for row in result.ranges)]
            manifest = Manifest(
                LOAD,
                job.load,
                cluster=self._cluster_id,
                topics={
                    topic: uuid_text(topic_id) for topic, topic_id in ids.items() if any(topic_id)
                },
                ranges=tuple(sorted(ranges, key=lambda row: (row.tp, row.start))),
                begins=work.begins,
                letters=tuple(entry for result in results for entry in result.letters),
                removed=change.removed,
                schema=schema,
                settings=settings,
                query=query,
                started_ms=job.started_ms,
                **with_schemas([*change.files, *change.rewritten]),
            )
            self._check_errors(manifest)
            self.check_stop()
        number = self.ledger.publish(manifest).number
        send_unsent(self.ledger, self.client, self.options.root, again=False)
        return LoadReport(
            number,
            manifest.rows,
            sum(row.dead for row in manifest.ranges),
            sum(row.skipped for row in manifest.ranges),
            sum(end - begin for row in manifest.ranges for begin, end in row.lost),
            len(change.files),
            sum(file.entry.bytes for file in change.files),
            new_columns=change.new_columns,
            widened=change.widened,
            lost_offsets=tuple(lost_texts(manifest.ranges)),
        )

    @contextlib.contextmanager
    def _staged(self, job: WriteJob) -> Iterator[None]:
        """A staging folder, which goes if what is done in it fails."""
        self.ledger.begin(job.load)
        try:
            yield
        except BaseException:
            self.ledger.abandon(job.load)
            raise

    def compact(self) -> int:
        """Merge small files; how many fewer there are."""
        fewer = 0
        while self.options.compact:
            groups = choose(self.ledger.state, self.options.target_bytes)
            if not groups:
                break
            job = replace(self._job(), schema=self.ledger.state.schema)
            try:
                with self._staged(job):
                    files = self._driver.compact(job, groups)
            except Stopped:  # the next load will do it
                break
            removed = tuple(entry.path for group in groups for entry in group)
            self.ledger.publish(
                Manifest(
                    COMPACTION,
                    job.load,
                    removed=removed,
                    started_ms=job.started_ms,
                    **with_schemas(files),
                )
            )
            fewer += len(removed) - len(files)
        return fewer

    # -- planning -------------------------------------------------------------------

    def source(self) -> SourceOptions:
        """The topics, for those who ask the cluster about them."""
        known = {tp.topic for tp in self.ledger.state.covered}
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

        # A wrong address must be reported at once; later on a broker may be restarting.
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

    def find_ranges(self, positions: Positions, logs: Logs) -> Work:
        """What is to be read, what is lost, and where the others begin."""
        return find_ranges(self.options, self.ledger.state, positions, logs)

    def _job(self) -> WriteJob:
        """What the tasks of a new load need to know."""
        layout, schema = self._layout, self.ledger.state.schema
        if layout.schema:
            schema = to_spark_json(parse_schema(layout.schema))
        return WriteJob(
            self.client,
            # A task may have another working directory.
            replace(self.options, to=str(self.options.root)),
            layout,
            self._parts,
            uuid.uuid4().hex,
            self._clock.now_ms(),
            schema,
        )

    def _check_errors(self, manifest: Manifest) -> None:
        bad = sum(row.dead + row.skipped for row in manifest.ranges)
        most = self.options.max_errors
        if most is not None and bad > most:
            tp = next(row for row in manifest.ranges if row.dead or row.skipped)
            raise LakeError(too_many(bad, most, f"in {tp.tp}[{tp.start}:{tp.end}]"))
