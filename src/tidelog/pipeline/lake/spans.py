"""Sets of offsets as sorted, disjoint spans ``(start, end)``, the end exclusive.  Pure."""

from __future__ import annotations

from collections.abc import Iterable

Span = tuple[int, int]
Spans = tuple[Span, ...]


def union(spans: Iterable[Span]) -> Spans:
    """All of them, in order; those that touch become one."""
    result: list[Span] = []
    for start, end in sorted(spans):
        if start >= end:
            continue
        if result and start <= result[-1][1]:
            result[-1] = (result[-1][0], max(end, result[-1][1]))
        else:
            result.append((start, end))
    return tuple(result)


def subtract(span: Span, taken: Iterable[Span]) -> Spans:
    """What is left of a span when others are taken away."""
    position, last = span
    result = []
    for start, end in union(taken):
        if end <= position:
            continue
        if start >= last:
            break
        if start > position:
            result.append((position, start))
        position = max(position, end)
    if position < last:
        result.append((position, last))
    return tuple(result)


def overlap(span: Span, other: Span) -> Span | None:
    """What two spans share, if anything."""
    start, end = max(span[0], other[0]), min(span[1], other[1])
    return (start, end) if start < end else None


def count(spans: Iterable[Span]) -> int:
    return sum(end - start for start, end in spans)


def spans_text(spans: Iterable[Span], limit: int = 5) -> str:
    """``3, 7 to 12 and 2 more`` for people."""
    listed = list(spans)
    shown = [str(a) if b == a + 1 else f"{a} to {b - 1}" for a, b in listed[:limit]]
    if len(listed) > limit:
        return ", ".join(shown) + f" and {len(listed) - limit} more"
    return ", ".join(shown)
