"""One schema for what all tasks of a load have met."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import pyarrow as pa

from tidelog.pipeline.lake.files import LakeError
from tidelog.pipeline.lake.schemas import (
    Conflict,
    from_spark_json,
    merge_fields,
    to_spark_json,
    whole_of,
)
from tidelog.pipeline.lake.writing import WriteJob
from tidelog.pipeline.ranges import OffsetRange

Tasks = Mapping[int, tuple[OffsetRange, ...]]

_MOST_ROUNDS = 5


def agree(
    job: WriteJob, tasks: Tasks, run: Callable[[WriteJob, Tasks], dict[int, dict[str, Any]]]
) -> tuple[list[dict[str, Any]], Any]:
    """Run the tasks; what came of them, and the schema of the destination from now on.

    Two tasks may meet the same new field at the same time, one as text, one as a number; or one
    a whole number that no double holds, the other a fraction.
    The earlier task is right, and the later one is done again, knowing that.
    """
    results = run(job, tasks)
    for _ in range(_MOST_ROUNDS):
        fields: list[pa.Field] = list(from_spark_json(job.schema)) if job.schema else []
        whole = whole_of(job.schema)
        again = {}
        for number, result in sorted(results.items()):
            more, grown = whole.union(result["whole"]), fields
            try:
                for file in result["files"]:
                    grown = merge_fields(grown, from_spark_json(file["schema"]), "", more)
            except Conflict:
                again[number] = tasks[number]
            else:
                whole, fields = more, grown
        schema = to_spark_json(pa.schema(fields), whole) if fields else None
        if not again:
            return list(results.values()), schema
        job = replace(job, schema=schema)
        results |= run(job, again)
    raise LakeError("the records have fields of changing types: name the types with --schema")
