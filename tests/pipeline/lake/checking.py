"""Whether a lake holds each record of its topics once: ledger, files and topic side by side.

It knows nothing of ``verify``: files are read as a plain reader does, the topic with our plain
client, the ledger as JSON.
"""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import pyarrow.parquet as pq
from support.record_reader import read_records

from tidelog.client.cluster import Cluster
from tidelog.client.partitions import extents
from tidelog.topic_partition import TopicPartition


def check(lake: Path, bootstrap: str, topic: str) -> int:
    """Raises AssertionError with what is wrong; returns how many records there are."""
    with Cluster(bootstrap) as cluster:
        count = len(cluster.topics([topic])[topic].partitions)
        logs = extents(cluster, [TopicPartition(topic, i) for i in range(count)])
        records = {
            (tp.partition, record.offset): bytes(record.value)
            for tp, log in logs.items()
            if log.end > log.start
            for record in read_records(cluster, tp, log)
        }
    rows: dict[tuple[int, int], bytes] = {}
    visible = [path for path in lake.rglob("*.parquet") if "_tidelog" not in path.parts]
    for path in visible:
        table = pq.ParquetFile(path).read(columns=["partition", "offset", "value"])
        for row in table.to_pylist():
            key = (row["partition"], row["offset"])
            assert key not in rows, f"{key} is there twice, the second time in {path}"
            rows[key] = row["value"]
    missing = sorted(records.keys() - rows.keys())
    assert not missing, f"{len(missing)} missing: {missing[:5]}"
    assert rows == records, "rows that are no records, or are not what the topic has"
    files: dict[str, int] = {}
    covered: dict[int, list[tuple[int, int]]] = {}
    for path in sorted((lake / "_tidelog").glob("0*.json")):
        if path.name.endswith(".snapshot.json"):
            continue
        manifest = json.loads(path.read_bytes())
        for name in manifest.get("removed", ()):
            del files[name]
        files |= {row["path"]: row["rows"] for row in manifest.get("files", ())}
        for row in manifest.get("ranges", ()):
            assert row["rows"] == row["end"] - row["start"], row
            covered.setdefault(row["partition"], []).append((row["start"], row["end"]))
    assert files.keys() == {path.relative_to(lake).as_posix() for path in visible}
    assert sum(files.values()) == len(rows)
    for partition, spans in covered.items():
        spans.sort()
        for (_, end), (start, _) in itertools.pairwise(spans):
            assert end == start, f"partition {partition}: ranges meet at {end} and {start}"
    return len(rows)
