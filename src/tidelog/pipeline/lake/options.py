"""The options of a load, what all loads of a destination share, and the report of a load."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from tidelog.client.offsets import OffsetError, Position, parse_position
from tidelog.pipeline.lake.ddl import parse_schema
from tidelog.pipeline.lake.files import LakeError, LocalFiles
from tidelog.pipeline.lake.layout import Layout, Part, renamed_fields
from tidelog.pipeline.lake.ledger import State
from tidelog.pipeline.lake.schemas import from_spark_json
from tidelog.pipeline.options import ClientOptions
from tidelog.pipeline.ranges import COLUMNS, HEADERS

KINDS = ("bytes", "text", "json", "csv")
ERRORS = ("fail", "skip", "dead-letter")
COMPRESSIONS = ("snappy", "zstd", "lz4", "gzip", "none")
TARGET_BYTES = 128 << 20


@dataclass(frozen=True, slots=True)
class LoadOptions:
    """What the user wants; see ``tidelog load --help`` for each."""

    topics: tuple[str, ...]
    to: str
    kafka: Mapping[str, str] = field(default_factory=dict)
    start: Position | None = None
    until: Position | None = None
    by: str | None = None
    value: str | None = None
    schema: str | None = None
    separator: str | None = None
    headers: bool | None = None
    errors: str = "dead-letter"
    max_errors: int | None = None
    dead_letters: str | None = None
    target_bytes: int = TARGET_BYTES
    compression: str = "snappy"
    compact: bool = True
    on_loss: str = "fail"
    on_corrupt: str = "fail"

    def __post_init__(self) -> None:
        _choose("value", self.value or "bytes", KINDS)
        _choose("errors", self.errors, ERRORS)
        _choose("compression", self.compression, COMPRESSIONS)
        _choose("on-loss", self.on_loss, ("fail", "skip"))
        _choose("on-corrupt", self.on_corrupt, ("fail", "skip"))
        if self.schema is not None and self.value not in ("json", "csv"):
            raise LakeError("--schema is for --value json or csv")
        if self.separator is not None and (self.value != "csv" or len(self.separator) != 1):
            raise LakeError("--separator is one character, for --value csv")
        if self.target_bytes < 1:
            raise LakeError("--target-bytes must be at least 1")
        if re.match(r"[A-Za-z][\w+.-]+://", self.to) and not self.to.startswith("file://"):
            raise LakeError(
                f"--to {self.to}: only folders can be loaded into, on a local disk or a mount that "
                "all executors share: a ledger needs files that can be created only once"
            )

    @property
    def root(self) -> Path:
        return Path(self.to.removeprefix("file://")).absolute()


@dataclass(frozen=True, slots=True)
class Widening:
    """A column that has got a wider type, and what became of the files that had the old one."""

    column: str
    before: str
    after: str
    rewritten: int = 0


@dataclass(frozen=True, slots=True)
class LoadReport:
    """What a load did."""

    number: int | None  # of its manifest; None if there was nothing to load
    rows: int = 0
    dead: int = 0
    skipped: int = 0
    lost: int = 0
    files: int = 0
    bytes: int = 0
    seconds: float = 0.0
    compacted: int = 0  # files that became fewer
    new_columns: tuple[str, ...] = ()  # that the destination did not have before
    widened: tuple[Widening, ...] = ()
    lost_offsets: tuple[str, ...] = ()  # which, as "topic-0: offsets 3 to 7"
    why_nothing: str = ""  # what --from and --until have to do with that, if they were given


def position_of(name: str, text: str | None) -> Position | None:
    try:
        return None if text is None else parse_position(text)
    except OffsetError as error:
        raise LakeError(f"{name}: {error}") from None


def _choose(name: str, value: str, known: Sequence[str]) -> None:
    if value not in known:
        raise LakeError(f"--{name} {value}: one of {', '.join(known)}")


# -- what all loads of a destination share ----------------------------------------------


def check_empty(root: Path) -> None:
    """A new destination in a folder that has files already would be read together with them."""
    names = [name for name in LocalFiles(root).names("") if name[0] not in "._"]
    if names:
        raise LakeError(
            f"{root} has no ledger, but it is not empty ({names[0]}): readers would take "
            "those files for records of the topics; load into a directory of its own"
        )


def layout_of(options: LoadOptions, state: State) -> Layout:
    """How values are decoded and what the folders are: the first load decides it."""
    asked = {
        "value": options.value,
        "by": options.by,
        "schema": options.schema,
        "separator": options.separator,
        "headers": options.headers,
    }
    given: dict[str, Any] = {k: v for k, v in asked.items() if v is not None}
    if not state.layout:
        return Layout(**given)
    for name, value in given.items():
        known = state.layout[name]
        if value != known:
            shown = f"no --{name}" if known is None else known
            raise LakeError(
                f"--{name} {value}: earlier loads into {options.to} had {shown}, and one "
                "destination has one layout; leave it out, or load into another directory"
            )
    return Layout(**state.layout)


def settings_of(options: LoadOptions, client: ClientOptions, layout: Layout) -> dict[str, Any]:
    """The settings of a load in its manifest."""
    return {
        "layout": asdict(layout),
        "start": str(options.start) if options.start else None,
        "until": str(options.until) if options.until else None,
        "errors": options.errors,
        "target_bytes": options.target_bytes,
        "compression": options.compression,
        "bootstrap": client.bootstrap,
        "read_committed": client.read_committed,
    }


def check_columns(parts: Sequence[Part], layout: Layout) -> None:
    """A folder by a column that no record will have is a mistake, where that can be known."""
    if layout.has_fields and layout.schema is None:
        return
    more = "; --value json or csv makes columns of values"
    known = [*COLUMNS, HEADERS]
    if layout.schema is not None:
        known = [name for name in known if name != "value"] + parse_schema(layout.schema).names
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
