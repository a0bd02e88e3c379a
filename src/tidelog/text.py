"""Words for people."""

from __future__ import annotations


def plural(count: int, word: str) -> str:
    """``1 record``, ``2,000 records``, ``3 batches``."""
    if count == 1:
        return f"1 {word}"
    return f"{count:,} {word}{'es' if word.endswith('ch') else 's'}"
