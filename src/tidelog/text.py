"""Words for people."""

from __future__ import annotations

from collections.abc import Sequence


def plural(count: int, word: str) -> str:
    """``1 record``, ``2,000 records``, ``3 batches``."""
    if count == 1:
        return f"1 {word}"
    return f"{count:,} {word}{'es' if word.endswith('ch') else 's'}"


def some(words: Sequence[str], most: int = 5) -> str:
    """``a, b, c and 7 more``."""
    rest = len(words) - most
    return ", ".join(words[:most]) + (f" and {rest:,} more" if rest > 0 else "")
