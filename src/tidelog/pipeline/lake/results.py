"""What tasks have told, as the ledger notes it.  Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tidelog.pipeline.lake.ledger import FileEntry, RangeEntry
from tidelog.pipeline.lake.spans import union


def range_entries(results: Sequence[dict[str, Any]]) -> list[RangeEntry]:
    return [
        RangeEntry(**row | {"lost": union((a, b) for a, b in row["lost"])})
        for result in results
        for row in result["ranges"]
    ]


def file_entries(
    files: Sequence[dict[str, Any]], letters: Sequence[dict[str, Any]] = ()
) -> dict[str, Any]:
    schemas: list[Any] = []
    for row in files:
        if row["schema"] not in schemas:
            schemas.append(row["schema"])
    return {
        "files": tuple(_file_entry(row, schemas.index(row["schema"])) for row in files),
        "letters": tuple(_file_entry(row, 0) for row in letters),
        "schemas": tuple(schemas),
    }


def _file_entry(row: dict[str, Any], schema: int) -> FileEntry:
    parts = tuple(tuple(part) for part in row["parts"])
    return FileEntry(row["path"], row["rows"], row["bytes"], parts, schema)
