"""Is a log sound?  Walks every batch and holds every other file against the log.

For each problem: the file, the position, the offset, and what the broker would do about it
at its next start.  Everything that may grow while a broker runs is read before the log that
it speaks about.  ``log_segments.py`` does the segments and their indexes.
"""

from __future__ import annotations

import os
from itertools import pairwise

from tidelog.log import checkpoints, leader_epochs, transaction_index
from tidelog.log.checkpoints import parse_checkpoint
from tidelog.log.leader_epochs import parse_epochs
from tidelog.log.manager import CLEAN_MARK
from tidelog.log.producer_state import ProducerState
from tidelog.settings import read_properties
from tidelog.text import plural
from tidelog.tools.log_files import is_partition, lock_owner, partition_name, segment_name
from tidelog.tools.log_segments import (
    DataDirectory,
    LogReport,
    Problem,
    SegmentCheck,
)
from tidelog.wire.uuids import parse_uuid

_CHECKPOINTS = (
    checkpoints.RECOVERY_POINT,
    checkpoints.HIGH_WATERMARK,
    checkpoints.LOG_START,
    checkpoints.CLEANER,
)


def read_data_directory(path: str) -> DataDirectory:
    """Checkpoints, the mark of a clean stop, the lock."""
    found = DataDirectory(
        path, os.path.exists(os.path.join(path, CLEAN_MARK)), running=lock_owner(path)
    )
    for name in _CHECKPOINTS:
        file = os.path.join(path, name)
        try:
            with open(file, encoding="utf-8") as text:
                found.offsets[name] = parse_checkpoint(text.read())
        except FileNotFoundError:
            continue
        except ValueError as error:
            recovery = "it is taken as empty: after a crash the logs are checked from their start"
            if name == checkpoints.LOG_START:
                recovery = "it is taken as empty: deleted records may come back"
            elif name == checkpoints.CLEANER:
                recovery = "it is taken as empty: compaction begins at the start of the logs again"
            found.problems.append(Problem(file, f"it cannot be read: {error}", recovery))
    file = os.path.join(path, "meta.properties")
    try:
        with open(file, encoding="utf-8") as text:
            meta = read_properties(text.read())
        if "cluster.id" not in meta:
            raise ValueError("it has no cluster.id")
    except FileNotFoundError:
        pass
    except ValueError as error:
        recovery = "the broker does not know whose data this is"
        found.problems.append(Problem(file, f"it cannot be read: {error}", recovery))
    return found


def check_path(path: str, *, deep: bool = False) -> list[LogReport]:
    """Check a partition's directory, or every partition of a data directory."""
    path = os.path.abspath(path)
    if is_partition(path):
        return [check_partition(path, read_data_directory(os.path.dirname(path)), deep=deep)]
    data = read_data_directory(path)
    reports = []
    if data.problems:
        reports.append(LogReport(path, problems=data.problems))
    for name in sorted(os.listdir(path)):
        child = os.path.join(path, name)
        if is_partition(child) and partition_name(child):
            reports.append(check_partition(child, data, deep=deep))
    return reports


def check_partition(directory: str, data: DataDirectory, *, deep: bool = False) -> LogReport:
    """Check one partition; ``data`` is what its data directory says about it."""
    others = _read_other_files(directory)  # first: a running broker may rewrite them
    report = SegmentCheck(directory, data, deep).run()
    key = partition_name(directory)
    report.start_offset = max(report.start_offset, data.offset(checkpoints.LOG_START, key) or 0)
    for name, content in others.items():
        report.problems += _check_file(os.path.join(directory, name), content, report.end_offset)
    for name, meaning in (
        (checkpoints.RECOVERY_POINT, "was flushed to disk"),
        (checkpoints.HIGH_WATERMARK, "was shown to consumers"),
        (checkpoints.LOG_START, "was deleted"),
    ):
        offset, end = data.offset(name, key), report.end_offset
        if offset is not None and offset > end:
            lost = plural(offset - end, "record") + (" is" if offset - end == 1 else " are")
            problem = Problem(
                os.path.join(data.path, name),
                f"everything before offset {offset} {meaning}, but the log ends at {end}",
                f"the broker goes on at offset {end}: {lost} lost",
                offset=offset,
            )
            report.problems.append(problem)
    return report


def _read_other_files(directory: str) -> dict[str, bytes]:
    found = {}
    for name in sorted(os.listdir(directory)):
        kind = (segment_name(name) or (0, ""))[1]
        if kind in ("snapshot", "txnindex") or name in (leader_epochs.NAME, "partition.metadata"):
            with open(os.path.join(directory, name), "rb") as file:
                found[name] = file.read()
    return found


def _check_file(path: str, content: bytes, end: int) -> list[Problem]:
    name = os.path.basename(path)
    try:
        if name == leader_epochs.NAME:
            return _check_epochs(path, content, end)
        if name == "partition.metadata":
            parse_uuid(read_properties(content.decode())["topic_id"])
        elif name.endswith(".txnindex"):
            if fault := transaction_index.fault(content, int(name[:20]), end):
                raise ValueError(fault)
        else:
            ProducerState.decode(content)
            offset = int(name[:20])
            if offset > end:
                problem = f"it speaks of offset {offset}, past the log's end ({end})"
                return [Problem(path, problem, "it is removed", offset=offset)]
    except (ValueError, KeyError) as error:
        recovery = {
            leader_epochs.NAME: "the broker begins with an empty list of epochs",
            "partition.metadata": "the topic's id is taken from the registry",
        }.get(name, "it is removed and rebuilt from the log")
        return [Problem(path, f"it cannot be read: {error}", recovery)]
    return []


def _check_epochs(path: str, content: bytes, end: int) -> list[Problem]:
    entries = parse_epochs(content.decode())
    if any(b[1] <= a[1] for a, b in pairwise(entries)):
        raise ValueError("the start offsets of its epochs do not grow")
    if entries and entries[-1][1] > end:
        problem = f"epoch {entries[-1][0]} starts at {entries[-1][1]}, past the log's end ({end})"
        return [Problem(path, problem, "the entry is dropped", offset=entries[-1][1])]
    return []
