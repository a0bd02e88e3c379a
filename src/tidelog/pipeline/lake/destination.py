"""What all loads of a destination share, and what one load is told from it and its options."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from tidelog.pipeline.lake.files import LakeError, LocalFiles
from tidelog.pipeline.lake.layout import Part
from tidelog.pipeline.lake.ledger import State
from tidelog.pipeline.lake.options import LoadOptions
from tidelog.pipeline.lake.writing import WriteJob
from tidelog.pipeline.options import ClientOptions

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


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
            shown = "nothing" if there[name] is None else there[name]
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


def user_schema(_: SparkSession, text: str) -> pa.Schema:
    """``name type, ...`` as in SQL; it is Spark that reads it, and a session must be there."""
    from pyspark.errors import PySparkException
    from pyspark.sql.pandas.types import to_arrow_schema
    from pyspark.sql.types import StructType

    try:
        return to_arrow_schema(StructType.fromDDL(text), timezone="UTC")
    except (PySparkException, AssertionError) as error:
        raise LakeError(
            f'--schema {text}: write it as in SQL, "user string, n bigint"; {error}'
        ) from None
