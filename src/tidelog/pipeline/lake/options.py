"""What a user may ask of a load, and what a load says afterwards."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tidelog.client.offsets import OffsetError, Position, parse_position
from tidelog.pipeline.lake.files import LakeError

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
