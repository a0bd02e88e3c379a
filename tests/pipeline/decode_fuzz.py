"""Hostile fetch answers for the decoder: ``python -m pipeline.decode_fuzz --count N --seed S``.

Bytes inside batches are changed and the CRC is made right again, so that the compiled loops see
them.  The answer ends where a page begins that must not be touched, and numba checks every
index: a read or a write past an end ends this process.
"""

# ruff: noqa: E402 (numba reads its settings when it is imported)
from __future__ import annotations

import argparse
import ctypes
import mmap
import os
import random
from pathlib import Path
from typing import Any

os.environ["NUMBA_BOUNDSCHECK"] = "1"
_CACHE = Path(__file__).parents[2] / ".cache" / "numba-checked"  # other code than users run
os.environ["NUMBA_CACHE_DIR"] = str(_CACHE)

import numpy as np
from crc32c import crc32c
from pipeline.logs import random_log

from tidelog.errors import ApiError
from tidelog.pipeline.decode import Decoder
from tidelog.pipeline.loss import CorruptBatch
from tidelog.pipeline.ranges import ALL_WITH_HEADERS, OffsetRange
from tidelog.wire.compression import codec_of, decompress
from tidelog.wire.records import split_batches

_NOTHING = 0  # PROT_NONE
_ROOM = 1 << 20


class Guarded:
    """Memory whose end is the end: the page after it cannot be read."""

    def __init__(self, size: int) -> None:
        self._map = mmap.mmap(-1, size + mmap.PAGESIZE)
        self._size = size
        address = ctypes.addressof(ctypes.c_char.from_buffer(self._map))
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.mprotect(ctypes.c_void_p(address + size), mmap.PAGESIZE, _NOTHING):
            raise OSError(ctypes.get_errno(), "mprotect")

    def put(self, data: bytes) -> memoryview:
        view = memoryview(self._map)[self._size - len(data) : self._size]
        view[:] = data
        return view


def hostile(rng: random.Random) -> bytes:
    """A log with changed bytes, most of it under right CRCs."""
    result = b""
    for batch in split_batches(random_log(rng, rng.randint(1, 6), 300).data):
        changed = bytearray(batch)
        if changed[22] & 7 and rng.random() < 0.7:  # look into more of them than few
            body = decompress(codec_of(changed[22]), bytes(changed[61:]))
            changed[61:] = body
            changed[22] &= ~7 & 255
            changed[8:12] = (len(changed) - 12).to_bytes(4, "big")
        for _ in range(rng.choice((0, 1, 1, 2, 8))):
            at = rng.randrange(21, len(changed)) if rng.random() < 0.95 else rng.randrange(21)
            changed[at] = rng.choice((0, 1, 2, 127, 128, 255, changed[at] ^ 1, rng.randrange(256)))
        if rng.random() < 0.1:
            at = rng.randrange(61, len(changed) + 1)
            changed[at:] = b""
            changed[8:12] = (len(changed) - 12).to_bytes(4, "big")
        if rng.random() < 0.95:
            changed[17:21] = crc32c(changed[21:]).to_bytes(4, "big")
        result += changed
    return result[: rng.randint(1, len(result))] if rng.random() < 0.2 else result


def run(count: int, seed: int) -> dict[str, int]:
    guarded = Guarded(_ROOM)
    seen = {"whole": 0, "damaged": 0, "refused": 0, "rows": 0}
    for number in range(count):
        rng = random.Random(f"{seed}/{number}")
        data = guarded.put(hostile(rng)[:_ROOM])
        start = rng.choice((0, 0, 0, 7, 2**31 - 10))
        end = start + rng.choice((20, 2**50, 2**50))
        part = OffsetRange("t", 0, start, end)
        columns = ALL_WITH_HEADERS
        decoder = Decoder(part, columns, target_bytes=rng.choice((1, 300, 1 << 20)), limit=1 << 22)
        # Beyond what is decompressed lies what looks like the middle of a number.
        decoder._scratch = np.full(decoder._scratch.shape, 0x81, np.uint8)
        batches: list[Any] = []
        lost = end
        try:
            answer = decoder.scan(data, start, [(11, start), (12, 3)])
            batches += decoder.decode(answer)
            seen["whole"] += 1
        except CorruptBatch as error:
            seen["damaged"] += 1
            lost = error.offset
            assert start <= lost < error.lost.end, error
        except ApiError:
            seen["refused"] += 1
        batches.append(decoder.flush())
        offsets: list[int] = []
        for batch in filter(None, batches):
            batch.validate(full=True)
            offsets += batch["offset"].to_pylist()
        assert offsets == sorted(set(offsets)), (seed, number)
        assert all(start <= offset < min(end, lost) for offset in offsets), (seed, number)
        seen["rows"] += len(offsets)
    return seen


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--count", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    chosen = parser.parse_args()
    seen = run(chosen.count, chosen.seed)
    print(f"{chosen.count} answers:", ", ".join(f"{n} {name}" for name, n in seen.items()))
    assert min(seen.values()) > 0, seen


if __name__ == "__main__":
    main()
