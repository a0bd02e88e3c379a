"""The sections, in the order of the table."""

from __future__ import annotations

from collections.abc import Callable

from bench import (
    clients,
    cluster,
    compaction,
    fetch,
    footprint,
    groups,
    latency,
    limits,
    mixed,
    partitions,
    produce,
    spark,
    startup,
)
from bench.report import Section
from bench.system import Bench

SECTIONS: dict[str, Callable[[Bench], Section]] = {
    "limits": limits.measure,
    "produce": produce.measure,
    "produce-6": produce.measure_partitions,
    "connections": produce.connections,
    "clients": clients.measure,
    "fetch": fetch.measure,
    "tail": fetch.tail,
    "latency": latency.measure,
    "latency-load": latency.under_load,
    "mixed": mixed.measure,
    "cold": fetch.cold,
    # From here on each has brokers of its own.
    "groups": groups.measure,
    "compaction": compaction.measure,
    "partitions": partitions.measure,
    "memory": footprint.measure,
    "start": startup.measure,
    "cluster": cluster.measure,
    # These two share a session; they are last, because its JVM stays until we end.
    "spark": spark.measure,
    "spark-load": spark.loads,
}

# What sections share is ended before these.
ALONE = ("groups", "compaction", "partitions", "memory", "start", "cluster", "spark")
