"""Random records, and a batch of them as it is decoded."""

from __future__ import annotations

import random

from support.log import NOW

from tidelog.wire.records import (
    Record,
)

Row = tuple[int, bytes | None, bytes | None, tuple[tuple[str, bytes | None], ...]]


def random_rows(rng: random.Random, count: int) -> list[Row]:
    """Lengths around the places where a varint grows, and much that compresses."""

    def data() -> bytes | None:
        size = rng.choice((0, 1, 62, 63, 64, 65, 127, 128, 1000))
        return rng.choice((None, rng.randbytes(size), b"tide" * size))

    return [
        (
            NOW + rng.choice((0, 1, -5, 63, 64, 1 << 40)),
            data(),
            data(),
            tuple(
                (rng.choice(("", "k", "é漢🌊")), data()) for _ in range(rng.choice((0, 0, 1, 3)))
            ),
        )
        for _ in range(count)
    ]


def as_records(rows: list[Row], base_offset: int = 0) -> list[Record]:
    return [Record(base_offset + i, *row) for i, row in enumerate(rows)]
