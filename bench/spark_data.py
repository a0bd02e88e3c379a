"""Topics for Spark to read: text-like records in batches that are encoded once.

Some 16 MB of different batches go round and round, so that neither Parquet's dictionaries
nor zstd's window find the same value twice where real data would not let them.
"""

from __future__ import annotations

import random
import socket
import time
from functools import lru_cache
from itertools import cycle

from bench.load import gone
from bench.wire import BenchError, connect, end_offset, make_topic, produce_request, try_produce
from tidelog.wire.compression import Codec
from tidelog.wire.records import encode_batch

BATCH = 64 << 10  # before compression, about
_ROW = 24  # bytes of a record beside its value, about
_DIFFERENT = 16 << 20
_WINDOW = 4  # requests under way
_WORDS = [f"{number:x}" for number in range(0x9000, 0xA000)]


@lru_cache
def batches(value: int, codec: Codec) -> tuple[list[bytes], int]:
    """Different batches, each with the same number of records; and that number."""
    count = BATCH // (value + _ROW)
    rng = random.Random(value)  # the same data in every run
    first = time.time_ns() // 1_000_000

    def record(number: int) -> tuple[int, bytes, bytes, tuple[()]]:
        head = f'{{"user":{rng.randrange(10**6)},"query":"'
        words = rng.choices(_WORDS, k=value // 5 + 1)
        text = (head + " ".join(words))[: value - 2].ljust(value - 2, "-") + '"}'
        return first + number // 10, b"%010d" % rng.randrange(10**6), text.encode(), ()

    made = [
        encode_batch([record(i) for i in range(n * count, (n + 1) * count)], codec=codec)
        for n in range(_DIFFERENT // BATCH)
    ]
    return made, count


def fill(
    port: int, topic: str, value: int, rows: int, codec: Codec = Codec.NONE, partitions: int = 4
) -> int:
    """Write at least so many records, the same number to each partition; returns how many."""
    made, count = batches(value, codec)
    turns = -(-rows // (count * partitions))
    requests = (produce_request(batch, topic, partitions=partitions) for batch in cycle(made))
    with connect(port) as sock:
        make_topic(sock, topic, partitions)
        size = try_produce(sock, next(requests))
        answer = bytearray(size)
        left = turns - 1
        for i in range(left + _WINDOW):
            if i < left:
                sock.sendall(next(requests))
            if i >= _WINDOW and sock.recv_into(answer, size, socket.MSG_WAITALL) != size:
                raise gone()
        total = end_offset(sock, topic, partitions)
    if total != turns * count * partitions:
        raise BenchError(f"{topic} has {total} records instead of {turns * count * partitions}")
    return total
