"""The offset map takes the memory that it promises, and more keys take more rounds."""

from __future__ import annotations

import tracemalloc
from pathlib import Path

import pytest
from support.compaction_model import table
from support.log import NOW, append, contents, log_config, open_in

from tidelog.log.cleaner_jobs import Limits, assess_log, clean_log
from tidelog.log.cleaner_records import BYTES_PER_KEY, SHORT_KEY, OffsetMap, add_keys
from tidelog.wire.batch import HEADER_SIZE, read_header
from tidelog.wire.records import encode_batch

pytestmark = pytest.mark.usefixtures("no_sync")

# A dict is largest, for its keys, when it has just grown: at two thirds of a power of two.
GROWN = 2**13 * 2 // 3


@pytest.mark.parametrize("length", [8, 16, SHORT_KEY, SHORT_KEY + 1, 1000])
@pytest.mark.parametrize("count", [GROWN - 2, GROWN + 2, GROWN + GROWN // 2])
def test_bytes_per_key(length: int, count: int) -> None:
    keys = (b"%d" % i for i in range(count))
    batches = []
    for start in range(0, count, 1000):
        rows = [
            (NOW, next(keys).ljust(length, b"."), b"", ()) for _ in range(min(1000, count - start))
        ]
        batches.append(encode_batch(rows, base_offset=2**40 + start))
    offsets: OffsetMap = {}
    tracemalloc.start()
    try:
        for batch in batches:
            add_keys(batch, HEADER_SIZE, len(batch), read_header(batch), 0, offsets)
        newest = sorted(offsets.values())
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(newest) == count
    print(f"{peak / count:.0f} bytes a key")
    assert peak < count * BYTES_PER_KEY


def test_more_keys_than_fit_take_more_rounds(quick_path: Path) -> None:
    log = open_in(quick_path / "t-0", log_config(cleanup_policy="compact", segment_bytes=20_000))
    for again in range(2):
        for start in range(0, 3000, 100):
            rows = [(NOW, b"%d" % i, b"%d" % again * 20, ()) for i in range(start, start + 100)]
            append(log, encode_batch(rows))
    log.roll(NOW)
    log.flush()
    expected = table(contents(log))
    limits = Limits(buffer_bytes=1000 * BYTES_PER_KEY, load_factor=1.0)
    rounds = []
    while result := clean_log(log, NOW + 1, limits):
        assert result.keys <= 1000
        rounds.append(result.end_offset)
        assert table(contents(log)) == expected
    assert rounds == [1000, 2000, 3000, 4000, 5000, 6000]
    assert len(contents(log)) == 3000
    assert assess_log(log, NOW + 1).dirty_bytes == 0


def test_a_batch_with_more_keys_than_fit_is_cleaned_all_the_same(quick_path: Path) -> None:
    log = open_in(quick_path / "t-0", log_config(cleanup_policy="compact", segment_bytes=20_000))
    for again in range(3):
        append(log, encode_batch([(NOW, b"%d" % i, b"%d" % again, ()) for i in range(500)]))
    log.roll(NOW)
    log.flush()
    while clean_log(log, NOW + 1, Limits(buffer_bytes=1)):
        pass
    assert [record.offset for record in contents(log)] == list(range(1000, 1500))
