"""Topics in and out of Spark, and loads into a lake, against tidelog or any Kafka cluster.

Enters: options as users of Spark's own Kafka connector know them.  Leaves: Arrow batches to
Spark, records to topics, Parquet files and a ledger that records which offsets they hold.

A record travels so: ``options.py`` reads what the user wants, ``positions.py`` asks the
cluster where that begins and ends, ``planner.py`` cuts it into ranges of offsets (no I/O), Spark
sends the ranges to its executors, ``reading.py`` fetches one range with our own client and
``decode.py`` turns whole fetches into Arrow columns.  ``source.py`` (with ``readers.py`` and
``streams.py``) and ``sink.py`` are what Spark calls; ``lake/`` writes Parquet inside the tasks
instead and publishes files and offsets together.  ``spark.py`` is the one place where a Spark
session is made (``jvm.py`` starts and ends its JVM); ``sql.py`` makes tables of topics in it.

It needs the extra ``spark``: ``pip install "tidelog[spark]"``.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tidelog.pipeline.lake.dead_letters import read_dead_letters
    from tidelog.pipeline.lake.load import load
    from tidelog.pipeline.lake.reading import lake_schema, read_lake
    from tidelog.pipeline.lake.verify import history, verify
    from tidelog.pipeline.spark import session

# What a user calls, and the module that has it; imported when it is first used, because
# PySpark takes its time.
_EXPORTS = {
    "history": "lake.verify",
    "lake_schema": "lake.reading",
    "load": "lake.load",
    "read_dead_letters": "lake.dead_letters",
    "read_lake": "lake.reading",
    "session": "spark",
    "verify": "lake.verify",
}

__all__ = [
    "history",
    "lake_schema",
    "load",
    "read_dead_letters",
    "read_lake",
    "session",
    "verify",
]


def __getattr__(name: str) -> Any:
    if name not in _EXPORTS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_EXPORTS[name]}"), name)
