"""Times as text."""

from __future__ import annotations

from datetime import UTC, datetime


def time_text(milliseconds: int) -> str:
    """A record's time, in UTC to the millisecond; ``-`` if it has none."""
    if milliseconds < 0:
        return "-"
    try:
        moment = datetime.fromtimestamp(milliseconds / 1000, UTC)
    except (OverflowError, ValueError, OSError):
        return str(milliseconds)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")
