"""The proof that offsets in are rows out, range by range; and the list of all loads.

Each range that the ledger names is compared with the files (the offsets that are really in
them, each once), with the dead letters, and, where offsets have no row, with the topic: an
offset that the topic has a record for is missing, the others are holes of compaction and
transactions.  Needs no Spark: only the column of offsets is read.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tidelog.client.offsets import Extent
from tidelog.client.partitions import extents
from tidelog.errors import ApiError
from tidelog.pipeline.lake.ledger import (
    STAGING,
    FileEntry,
    Ledger,
    Manifest,
    RangeEntry,
    lost_texts,
    open_ledger,
)
from tidelog.pipeline.lake.schemas import differences
from tidelog.pipeline.loss import Unreadable
from tidelog.pipeline.options import ClientOptions
from tidelog.pipeline.ranges import (
    Columns,
    OffsetRange,
    Span,
    Spans,
    count,
    overlap,
    spans_text,
    subtract,
    union,
)
from tidelog.pipeline.reading import read_range
from tidelog.text import plural
from tidelog.topic_partition import TopicPartition
from tidelog.wire.schema import ZERO_UUID
from tidelog.wire.uuids import parse_uuid, uuid_text

_OFFSET = Columns(("offset",))
_TRIES = 3  # a load may replace files while we look at them


@dataclass(frozen=True, slots=True)
class RangeCheck:
    """One range of one load: ``offsets`` = rows + dead + skipped + lost + holes + missing."""

    manifest: int
    topic: str
    partition: int
    start: int
    end: int
    offsets: int
    rows: int  # found in files
    dead: int
    skipped: int
    lost: int
    holes: int
    unchecked: int  # of the holes: the topic could not be asked about them
    missing: Spans
    doubled: Spans

    @property
    def ok(self) -> bool:
        return not self.missing and not self.doubled


@dataclass(slots=True)
class VerifyReport:
    """What was found; ``problems`` are sentences, none if all is well."""

    ranges: list[RangeCheck] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    files: int = 0

    @property
    def ok(self) -> bool:
        return not self.problems

    def total(self, name: str) -> int:
        return sum(getattr(row, name) for row in self.ranges)


def verify(to: str | Path, *, bootstrap: str | None = None) -> VerifyReport:
    """Compare ledger, files and topic; the brokers of the last load, if none are named."""
    ledger = open_ledger(to)
    for _ in range(_TRIES):
        number = ledger.refresh().number
        report = _Verification(ledger, Path(to), bootstrap).run()
        if report.ok or ledger.refresh().number == number:
            break
    return report


def history(to: str | Path) -> list[Manifest]:
    """Every load, compaction and cleaning, the oldest first."""
    return list(open_ledger(to).manifests())


class _Verification:
    def __init__(self, ledger: Ledger, root: Path, bootstrap: str | None) -> None:
        self._ledger = ledger
        self._state = ledger.state
        self._root = root
        self._bootstrap = bootstrap
        self._report = VerifyReport()
        self._read_committed = False
        self._logs: dict[TopicPartition, Extent] = {}
        self._client: ClientOptions | None = None
        self._why_not = "no broker is known"

    def run(self) -> VerifyReport:
        there: dict[TopicPartition, list[np.ndarray]] = {}
        dead: dict[TopicPartition, list[np.ndarray]] = {}
        for entries, found in ((self._state.files, there), (self._state.letters, dead)):
            for entry in entries.values():
                self._read(entry, found)
        self._report.files = len(self._state.files)
        self._old_types()
        self._unknown_files()
        rows = {tp: _sorted_spans(arrays) for tp, arrays in there.items()}
        letters = {tp: _sorted_spans(arrays) for tp, arrays in dead.items()}
        ranges = self._ranges()
        self._connect({row.tp for _, row in ranges})
        for number, row in ranges:
            empty: tuple[Spans, Spans] = ((), ())
            self._check(number, row, rows.get(row.tp, empty), letters.get(row.tp, empty)[0])
        self._outside(ranges, rows)
        return self._report

    def _ranges(self) -> list[tuple[int, RangeEntry]]:
        result = []
        for manifest in self._ledger.manifests():
            if manifest.number > self._state.number:
                break
            result += [(manifest.number, row) for row in manifest.ranges]
            if "bootstrap" in manifest.settings:
                self._bootstrap = self._bootstrap or manifest.settings["bootstrap"]
                self._read_committed |= bool(manifest.settings.get("read_committed"))
        taken: dict[TopicPartition, Spans] = {}
        for number, row in result:
            span = (row.start, row.end)
            for other in taken.get(row.tp, ()):
                both = overlap(span, other)
                if both is not None:
                    self._report.problems.append(
                        f"{row.tp}: offsets {spans_text([both])} were loaded twice, the second "
                        f"time by load {number}"
                    )
            taken[row.tp] = union([*taken.get(row.tp, ()), span])
        return result

    # -- files --------------------------------------------------------------------

    def _read(self, entry: FileEntry, found: dict[TopicPartition, list[np.ndarray]]) -> None:
        path = self._root / entry.path
        if not path.exists():  # published, and not yet in its place
            staged = list((self._root / STAGING).glob(f"*/{entry.staged}"))
            path = staged[0] if staged else path
        try:
            table = _read_offsets(path, entry)
        except (OSError, pa.ArrowInvalid, KeyError) as error:
            gone = isinstance(error, FileNotFoundError)
            why = "it is not there" if gone else f"it cannot be read: {error}"
            self._report.problems.append(f"{entry.path} with {plural(entry.rows, 'row')}: {why}")
            return
        if table.num_rows != entry.rows:
            self._report.problems.append(
                f"{entry.path} has {plural(table.num_rows, 'row')}, not {entry.rows} as the ledger "
                "says"
            )
        self._infinite(path, entry)
        tps = table.group_by(["topic", "partition"]).aggregate([]).to_pylist()
        for row in tps:
            rows = table
            if len(tps) > 1:
                mask = pc.and_(
                    pc.equal(table["topic"], row["topic"]),
                    pc.equal(table["partition"], row["partition"]),
                )
                rows = table.filter(mask)
            tp = TopicPartition(row["topic"], row["partition"])
            found.setdefault(tp, []).append(_spans(rows["offset"].to_numpy()))

    def _infinite(self, path: Path, entry: FileEntry) -> None:
        """JSON has no such number: an older tidelog made it of one that no double holds."""
        if self._state.layout.get("value") != "json" or entry.path in self._state.letters:
            return
        metadata = pq.read_metadata(path)
        for group in range(metadata.num_row_groups):
            for index in range(metadata.num_columns):
                column = metadata.row_group(group).column(index)
                found = column.statistics if column.physical_type in ("DOUBLE", "FLOAT") else None
                if found and found.has_min_max and np.isinf([found.min, found.max]).any():
                    self._report.problems.append(
                        f"{entry.path}: {column.path_in_schema} is infinite in a row, which JSON "
                        "cannot say: load the topic again, into another directory"
                    )

    def _old_types(self) -> None:
        """Files that an older tidelog left as they were when a column became double."""
        state = self._state
        for index, schema in enumerate(state.schemas):
            files = [entry.path for entry in state.files.values() if entry.schema == index]
            for column, before, after in differences(schema, state.schema)[1] if files else ():
                self._report.notes.append(
                    f"{column} is {after}, and {before} in {', '.join(files)}, with whole numbers "
                    f"that a {after} would round: read such a file by itself"
                )

    def _unknown_files(self) -> None:
        known = self._state.files.keys()
        for path in sorted(self._root.rglob("*.parquet")):
            name = path.relative_to(self._root).as_posix()
            hidden = any(part[0] in "._" for part in name.split("/"))
            if name not in known and not hidden:
                self._report.problems.append(
                    f"{name} is not in the ledger: plain readers see it all the same"
                )

    # -- ranges -------------------------------------------------------------------

    def _check(
        self, number: int, row: RangeEntry, found: tuple[Spans, Spans], letters: Spans
    ) -> None:
        span = (row.start, row.end)
        there, doubled = (_within(spans, span) for spans in found)
        dead = _within(letters, span)
        lost = _within(row.lost, span)
        rest = _without(subtract(span, (*there, *dead)), lost)
        absent, unchecked = self._in_topic(row, rest)
        missing = absent if count(absent) > row.skipped else ()
        skipped = 0 if missing else row.skipped
        rows = count(there)
        if not missing and rows + count(dead) < row.rows + row.dead:
            # The topic no longer has them, but the load counted them.
            missing = rest
        result = RangeCheck(
            number,
            row.topic,
            row.partition,
            row.start,
            row.end,
            row.end - row.start,
            rows,
            count(dead),
            skipped,
            count(lost),
            count(rest) - skipped - count(missing),
            unchecked,
            missing,
            doubled,
        )
        self._report.ranges.append(result)
        where = f"{row.tp}[{row.start}:{row.end}] of load {number}"
        if missing:
            self._report.problems.append(
                f"{where}: {plural(count(missing), 'record')} missing: offsets "
                f"{spans_text(missing)}"
            )
        if doubled:
            self._report.problems.append(
                f"{where}: {plural(count(doubled), 'record')} more than once: offsets "
                f"{spans_text(doubled)}"
            )

    def _in_topic(self, row: RangeEntry, rest: Spans) -> tuple[Spans, int]:
        """Which of these offsets are records of the topic, and how many cannot be asked for."""
        if not rest:
            return (), 0
        log = self._logs.get(row.tp)
        if log is None or self._client is None:
            return (), count(rest)
        askable = _within(rest, (log.start, log.end))
        if not askable:
            return (), count(rest)
        topic_id = self._state.topics.get(row.topic)
        part = OffsetRange(
            *row.tp,
            askable[0][0],
            askable[-1][1],
            parse_uuid(topic_id) if topic_id else ZERO_UUID,
        )
        present: list[np.ndarray] = []

        def unreadable(_: Unreadable) -> None:
            return None

        for batch in read_range(
            self._client, part, _OFFSET, on_loss=unreadable, on_corrupt=unreadable
        ):
            present.append(_spans(batch.column(0).to_numpy()))
        spans, _ = _sorted_spans(present)
        found = tuple(both for one in askable for both in _within(spans, one))
        return found, count(rest) - count(askable)

    def _outside(
        self,
        ranges: Sequence[tuple[int, RangeEntry]],
        rows: Mapping[TopicPartition, tuple[Spans, Spans]],
    ) -> None:
        covered: dict[TopicPartition, Spans] = {}
        for _, row in ranges:
            covered[row.tp] = union([*covered.get(row.tp, ()), (row.start, row.end)])
        for tp, (there, _) in rows.items():
            extra = [left for span in there for left in subtract(span, covered.get(tp, ()))]
            if extra:
                self._report.problems.append(
                    f"{tp}: {plural(count(extra), 'row')} of no load: offsets {spans_text(extra)}"
                )
        for tp, spans in covered.items():
            gaps = subtract((spans[0][0], spans[-1][1]), spans)
            if gaps:
                self._report.notes.append(f"{tp}: offsets {spans_text(gaps)} were never loaded")
        lost = lost_texts(row for _, row in ranges)
        self._report.notes.extend(f"{text} are lost" for text in lost)
        unchecked = self._report.total("unchecked")
        if unchecked:
            self._report.notes.append(
                f"{plural(unchecked, 'offset')} without a row: whether they were records cannot be "
                f"asked any more ({self._why_not})"
            )

    def _connect(self, tps: Iterable[TopicPartition]) -> None:
        """The topics as they are now, if they are the ones that were loaded."""
        if self._bootstrap is None:
            return
        settings = {"kafka.bootstrap.servers": self._bootstrap}
        if self._read_committed:
            settings["kafka.isolation.level"] = "read_committed"
        client = ClientOptions.parse(settings)
        try:
            with client.cluster() as cluster:
                views = cluster.metadata({tp.topic for tp in tps}).topics
                same = [
                    tp
                    for tp in tps
                    if not views[tp.topic].error
                    and self._state.topics.get(tp.topic, "")
                    in ("", uuid_text(views[tp.topic].topic_id))
                    and tp.partition < len(views[tp.topic].partitions)
                ]
                self._logs = extents(cluster, same)
        except ApiError as error:
            self._why_not = str(error)
            return
        self._client = client
        self._why_not = "the topic has them no longer"


# -- offsets --------------------------------------------------------------------------


def _read_offsets(path: Path, entry: FileEntry) -> pa.Table:
    """Topic, partition and offset of each row; what a folder's name holds is not in the file."""
    with pq.ParquetFile(path) as file:
        names = file.schema_arrow.names
        columns = [name for name in ("topic", "partition", "offset") if name in names]
        table = file.read(columns=columns)
    named = dict(part.partition("=")[::2] for part in entry.folder.split("/") if "=" in part)
    for name, kind in (("topic", pa.string()), ("partition", pa.int32())):
        if name not in columns:
            value = pa.scalar(unquote(named[name])).cast(kind)
            table = table.append_column(name, pa.array([value.as_py()] * table.num_rows, kind))
    return table


def _sorted_spans(arrays: Sequence[np.ndarray]) -> tuple[Spans, Spans]:
    """All spans of all files as one, and what is there more than once."""
    if not arrays:
        return (), ()
    spans = np.concatenate(arrays)
    starts, ends = spans[np.argsort(spans[:, 0], kind="stable")].T
    reach = np.maximum.accumulate(ends)
    twice = np.flatnonzero(starts[1:] < reach[:-1])
    doubled = union(
        zip(
            starts[1:][twice].tolist(),
            np.minimum(ends[1:], reach[:-1])[twice].tolist(),
            strict=True,
        )
    )
    breaks = np.flatnonzero(starts[1:] > reach[:-1])
    firsts = starts[np.concatenate(([0], breaks + 1))]
    lasts = reach[np.concatenate((breaks, [len(reach) - 1]))]
    return tuple(zip(firsts.tolist(), lasts.tolist(), strict=True)), doubled


def _spans(offsets: np.ndarray) -> np.ndarray:
    """The offsets of one file as rows (start, end); an offset that is there twice gives two."""
    offsets = np.sort(offsets)
    breaks = np.flatnonzero(np.diff(offsets) != 1)
    starts = offsets[np.concatenate(([0], breaks + 1))]
    ends = offsets[np.concatenate((breaks, [len(offsets) - 1]))] + 1
    return np.stack((starts, ends), axis=1)


def _within(spans: Spans, limits: Span) -> Spans:
    first = bisect.bisect_right(spans, limits[0], key=lambda span: span[1])
    result = []
    for span in spans[first:]:
        both = overlap(span, limits)
        if both is None:
            break
        result.append(both)
    return tuple(result)


def _without(spans: Spans, taken: Spans) -> Spans:
    return tuple(left for span in spans for left in subtract(span, _within(taken, span)))


def as_json(report: VerifyReport) -> dict[str, Any]:
    """For ``--json``."""
    return {
        "ok": report.ok,
        "files": report.files,
        "rows": report.total("rows"),
        "problems": report.problems,
        "notes": report.notes,
        "ranges": [asdict(row) for row in report.ranges],
    }
