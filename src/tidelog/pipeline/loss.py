"""What cannot be read any more, named exactly.

Both errors carry the offsets that are lost.  A reader that may go on without them gets the
same object through a callback instead: rows that were read and ranges that were lost together
always cover the whole range that was asked for.
"""

from __future__ import annotations

from tidelog.errors import ApiError, ErrorCode
from tidelog.pipeline.ranges import OffsetRange


class Unreadable(ApiError):
    """Offsets of a partition that cannot be had; ``lost`` says which, ``reason`` why."""

    code_of_kind = ErrorCode.UNKNOWN_SERVER_ERROR

    def __init__(self, lost: OffsetRange, reason: str) -> None:
        self.lost = lost
        self.reason = reason
        super().__init__(self.code_of_kind, f"{lost.tp}: {_offsets(lost)}: {reason}")

    @property
    def topic(self) -> str:
        return self.lost.topic

    @property
    def partition(self) -> int:
        return self.lost.partition

    @property
    def offset(self) -> int:
        """The first one that is lost."""
        return self.lost.start

    def __reduce__(self) -> tuple[type[Unreadable], tuple[OffsetRange, str]]:
        return type(self), (self.lost, self.reason)


class DataLoss(Unreadable):
    """The offsets are not there: retention was faster, or the topic is another one now."""

    code_of_kind = ErrorCode.OFFSET_OUT_OF_RANGE


class CorruptBatch(Unreadable):
    """The offsets are there, but what is stored under them is damaged."""

    code_of_kind = ErrorCode.CORRUPT_MESSAGE


def _offsets(lost: OffsetRange) -> str:
    if len(lost) == 1:
        return f"offset {lost.start}"
    return f"offsets {lost.start} to {lost.end - 1}"
