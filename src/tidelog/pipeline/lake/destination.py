"""What all loads of a destination share, and what one load is told from it and its options."""

from __future__ import annotations

import difflib
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tidelog.pipeline.lake.ddl import parse_schema
from tidelog.pipeline.lake.files import LakeError, LocalFiles
from tidelog.pipeline.lake.layout import Part, renamed_fields
from tidelog.pipeline.lake.ledger import State
from tidelog.pipeline.lake.options import LoadOptions
from tidelog.pipeline.lake.schemas import from_spark_json
from tidelog.pipeline.lake.writing import WriteJob
from tidelog.pipeline.options import ClientOptions
from tidelog.pipeline.ranges import COLUMNS, HEADERS


def check_empty(root: Path) -> None:
    """A new destination in a folder that has files already would be read together with them."""
    names = [name for name in LocalFiles(root).names("") if name[0] not in "._"]
    if names:
        raise LakeError(
            f"{root} has no ledger, but it is not empty ({names[0]}): readers would take "
            "those files for records of the topics; load into a directory of its own"
        )


def layout_of(options: LoadOptions, state: State) -> dict[str, Any]:
    """How values are decoded and what the folders are: the first load says it."""
    asked = {
        "value": options.value,
        "by": options.by,
        "schema": options.schema,
        "separator": options.separator,
        "headers": options.headers,
    }
    there = state.layout
    if not there:
        defaults = {"value": "bytes", "separator": ",", "headers": False}
        return {k: defaults.get(k) if v is None else v for k, v in asked.items()}
    for name, value in asked.items():
        if value is not None and value != there[name]:
            shown = f"no --{name}" if there[name] is None else there[name]
            raise LakeError(
                f"--{name} {value}: earlier loads into {options.to} had {shown}, and one "
                "destination has one layout; leave it out, or load into another directory"
            )
    return there


def settings_of(
    options: LoadOptions, client: ClientOptions, layout: dict[str, Any]
) -> dict[str, Any]:
    """What the ledger notes of a load's options."""
    return {
        "layout": layout,
        "start": str(options.start) if options.start else None,
        "until": str(options.until) if options.until else None,
        "errors": options.errors,
        "target_bytes": options.target_bytes,
        "compression": options.compression,
        "bootstrap": client.bootstrap,
        "read_committed": client.read_committed,
    }


def write_job(
    options: LoadOptions,
    client: ClientOptions,
    layout: dict[str, Any],
    parts: tuple[Part, ...],
    schema: Any,
    name: str,
    started: int,
) -> WriteJob:
    """All that tasks are told; ``schema`` is the destination's, or the user's."""
    stamp = time.strftime("%Y%m%dT%H%M%S", time.gmtime(started / 1000))
    return WriteJob(
        client,
        str(options.root),
        name,
        f"{stamp}-{name[:8]}",
        parts=parts,
        value=layout["value"],
        schema=schema,
        fixed=layout["schema"] is not None,
        separator=layout["separator"],
        headers=layout["headers"],
        compression=options.compression,
        target_bytes=options.target_bytes,
        errors=options.errors,
        max_errors=options.max_errors,
        skip_lost=options.on_loss == "skip",
        skip_corrupt=options.on_corrupt == "skip",
    )


def check_columns(parts: Sequence[Part], layout: dict[str, Any]) -> None:
    """A folder by a column that no record will have is a mistake, where that can be known."""
    if layout["value"] in ("json", "csv") and layout["schema"] is None:
        return
    more = "; --value json or csv makes columns of values"
    known = [*COLUMNS, HEADERS]
    if layout["schema"] is not None:
        known = [name for name in known if name != "value"] + parse_schema(layout["schema"]).names
        more = ""
    _check_known(parts, known, "there is no column", more)


def check_fields(parts: Sequence[Part], schema: Any) -> None:
    """The same where the columns are the fields that the records of a first load have."""
    found = from_spark_json(schema).names
    known = [*COLUMNS, HEADERS, *found, *renamed_fields(parts, found)]
    more = "; a field that will come later is named with --schema"
    _check_known(parts, list(dict.fromkeys(known)), "no record has a field", more)


def _check_known(parts: Sequence[Part], known: Sequence[str], lack: str, more: str) -> None:
    by_lower = {name.lower(): name for name in known}
    for part in parts:
        if part.column is None or part.column.lower() in by_lower:
            continue
        close = difflib.get_close_matches(part.column.lower(), by_lower, n=1)
        hint = f"did you mean {by_lower[close[0]]}?" if close else f"there are {', '.join(known)}"
        raise LakeError(f"--by {part.expression}: {lack} {part.column}; {hint}{more}")
