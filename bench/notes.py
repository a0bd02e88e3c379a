"""Reasons that outlive a run: ``notes.md``, a heading for each row or for many.

A heading is the beginning of ``section: row``; the longest one that fits a row is its own.
"""

from __future__ import annotations

from pathlib import Path

NOTES = Path(__file__).with_name("notes.md")


def read(path: Path = NOTES) -> dict[str, str]:
    """Text by heading; what stands before the first heading is for readers of the file."""
    found: dict[str, list[str]] = {}
    lines: list[str] = []
    for line in path.read_text().splitlines() if path.exists() else ():
        if line.startswith("## "):
            lines = found.setdefault(line[3:].strip(), [])
        else:
            lines.append(line.strip())
    return {heading: " ".join(" ".join(text).split()) for heading, text in found.items()}
