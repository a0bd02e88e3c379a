"""What a power cut leaves of a data directory: what was flushed, and anything of the rest.

The broker promises that what it acknowledged was flushed (``flush.messages=1``, or
``visibility=flushed``).  So up to the last acknowledged record a log is as it was written.
Behind it a file may end anywhere, hold zeros or hold something else; files that are never
flushed (indexes of the newest segments, snapshots) may be missing, empty or garbage.
"""

import os

from tidelog.log.segment import Segment
from tidelog.wire.batch import LENGTH_OVERHEAD


def cut_power(directory, flushed, rng):
    """Damage one partition directory behind offset ``flushed``; says what it did."""
    did = []
    logs = sorted(name for name in os.listdir(directory) if name.endswith(".log"))
    bases = [int(name[:20]) for name in logs]
    safe = max(i for i, base in enumerate(bases) if base <= max(flushed, bases[0]))
    for i in range(safe, len(logs)):
        stem = os.path.join(directory, logs[i][:20])
        for suffix in (".index", ".timeindex", ".snapshot"):
            did.append(_spoil(stem + suffix, rng))
        path = stem + ".log"
        if i > safe and rng.random() < 0.3:
            os.unlink(path)  # its name had not reached the disk
            did.append(f"{logs[i]} gone")
            continue
        position = _position(directory, bases[i], flushed) if i == safe else 0
        did.append(_cut(path, position, rng))
    return [what for what in did if what]


def _position(directory, base, offset):
    """Where the batch that holds ``offset`` begins (the end of the file if none does)."""
    segment = Segment(directory, base)
    position = 0
    for at, header in segment.headers():
        if header.base_offset >= offset:
            return at
        position = at + header.length + LENGTH_OVERHEAD
    return position


def _cut(path, position, rng):
    size = os.path.getsize(path)
    at = rng.randint(position, size)
    tail = size - at
    how = rng.choice(("nothing", "zeros", "garbage", "a page of zeros"))
    with open(path, "r+b") as file:
        file.truncate(at)
        file.seek(at)
        if how == "zeros":
            file.write(bytes(tail))
        elif how == "garbage":
            file.write(rng.randbytes(tail))
        elif how == "a page of zeros":
            file.write(bytes(4096))
    return f"{os.path.basename(path)}: {how} from {at} of {size} on (safe to {position})"


def _spoil(path, rng):
    if not os.path.exists(path):
        return ""
    how = rng.choice(("kept", "gone", "empty", "half", "garbage", "zeros"))
    size = os.path.getsize(path)
    if how == "gone":
        os.unlink(path)
    elif how != "kept":
        with open(path, "r+b") as file:
            if how == "empty":
                file.truncate(0)
            elif how == "half":
                file.truncate(size // 2)
            else:
                file.write(rng.randbytes(size) if how == "garbage" else bytes(size))
    return f"{os.path.basename(path)}: {how}"
