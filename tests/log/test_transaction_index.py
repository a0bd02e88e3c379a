"""The index of aborted transactions: its file, and what is found in it."""

import struct
from pathlib import Path

import pytest
from support.log import NOW, append, contents, log_config, make_batch, open_in

from tidelog.errors import ApiError, ErrorCode
from tidelog.log.log import Log
from tidelog.log.transaction_index import Aborted, TransactionIndex, fault
from tidelog.wire.batch import CONTROL, TRANSACTIONAL, read_header
from tidelog.wire.markers import Marker, encode_marker, read_marker
from tidelog.wire.records import encode_batch

ROWS = [Aborted(7, 100, 104, 101), Aborted(8, 101, 110, 105), Aborted(7, 105, 120, 121)]


def in_transaction(producer_id: int, sequence: int, epoch: int = 0) -> bytes:
    return encode_batch(
        [(NOW, None, b"x", ())],
        producer_id=producer_id,
        producer_epoch=epoch,
        base_sequence=sequence,
        attributes=TRANSACTIONAL,
    )


def marker(producer_id: int, *, committed: bool, epoch: int = 0, coordinator: int = 0) -> bytes:
    return encode_marker(Marker(committed, coordinator), producer_id, epoch, NOW)


@pytest.fixture
def index(tmp_path: Path) -> TransactionIndex:
    made = TransactionIndex(str(tmp_path / "00000000000000000100.txnindex"), 100)
    for row in ROWS:
        made.add(row)
    return made


def test_the_file_is_as_kafka_writes_it(index: TransactionIndex) -> None:
    index.flush()
    expected = b"".join(struct.pack(">hqqqq", 0, *row) for row in ROWS)
    assert Path(index.path).read_bytes() == expected
    again = TransactionIndex(index.path, 100)
    assert list(again.entries()) == ROWS
    assert fault(expected, 100, 121) == ""


def test_without_entries_there_is_no_file(index: TransactionIndex) -> None:
    TransactionIndex(index.path, 100).flush()
    assert not Path(index.path).exists()
    index.flush()
    index.reset()
    index.flush()
    assert not Path(index.path).exists()
    index.add(ROWS[0])
    index.flush()
    assert list(TransactionIndex(index.path, 100).entries()) == ROWS[:1]


@pytest.mark.parametrize(
    ("start", "end", "rows", "complete"),
    [
        (100, 101, [0], True),  # 0's last stable offset says: nothing older is open
        (100, 102, [0, 1], True),
        (100, 106, [0, 1, 2], True),
        (105, 106, [1, 2], True),
        (111, 121, [2], True),
        (111, 122, [2], False),  # a later segment may end one that starts here
        (121, 130, [], False),
    ],
)
def test_what_a_reader_must_leave_out(
    index: TransactionIndex, start: int, end: int, rows: list[int], complete: bool
) -> None:
    found: list[Aborted] = []
    assert index.collect(start, end, found) == complete
    assert found == [ROWS[row] for row in rows]


@pytest.mark.parametrize(("offset", "left"), [(104, 0), (105, 1), (110, 1), (120, 2), (121, 3)])
def test_truncating_keeps_what_ended_before(
    index: TransactionIndex, offset: int, left: int
) -> None:
    index.flush()
    again = TransactionIndex(index.path, 100)
    again.truncate(offset)
    again.flush()
    assert list(TransactionIndex(index.path, 100).entries()) == ROWS[:left]


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: data[:-1],
        lambda data: b"\0\1" + data[2:],
        lambda data: data[34:] + data[:34],
        lambda data: data[:2] + b"\xff" * 8 + data[10:],
        lambda data: data + struct.pack(">hqqqq", 0, 1, 120, 200, 201),
    ],
)
def test_what_cannot_be_is_noticed(index: TransactionIndex, damage) -> None:
    index.flush()
    assert fault(damage(Path(index.path).read_bytes()), 100, 121)


def test_markers_as_kafka_writes_them() -> None:
    batch = marker(5, committed=True, coordinator=3)
    assert len(batch) == 78
    assert read_header(batch).attributes == TRANSACTIONAL | CONTROL
    assert read_marker(batch) == Marker(True, 3)
    assert read_marker(marker(5, committed=False)) == Marker(False, 0)
    assert read_marker(make_batch([b"x"])) is None
    assert read_marker(make_batch([])) is None
    kraft = encode_batch([(NOW, b"\0\0\0\2", b"\0\0", ())], attributes=CONTROL)
    assert read_marker(kraft) is None


# -- in a log --------------------------------------------------------------------


@pytest.fixture
def log(tmp_path: Path) -> Log:
    return open_in(tmp_path, log_config(segment_bytes=400, index_interval_bytes=0))


def write(log: Log) -> None:
    """One aborted over several segments, one committed inside it, one that stays open."""
    append(log, in_transaction(1, 0))
    append(log, in_transaction(2, 0))
    for _ in range(10):
        append(log)
    append(log, marker(2, committed=True))
    append(log, in_transaction(1, 1))
    append(log, marker(1, committed=False))  # offset 14
    append(log, in_transaction(3, 0))  # 15
    for _ in range(10):
        append(log)


ABORTED = [Aborted(1, 0, 14, 15)]


def aborted_of(log: Log) -> list[Aborted]:
    return [row for segment in log.segments for row in segment.transaction_index.entries()]


def test_the_last_stable_offset(log: Log) -> None:
    append(log)
    assert log.last_stable_offset == 1
    log.truncate_to(0)
    write(log)
    assert log.last_stable_offset == 15
    assert log.end_offset == 26
    log.check_invariants()
    append(log, marker(3, committed=True))
    assert log.last_stable_offset == log.end_offset == 27
    assert aborted_of(log) == ABORTED


def test_a_marker_that_may_be_lost_decides_nothing(log: Log) -> None:
    append(log, in_transaction(1, 0))
    visible = log.end_offset
    append(log, marker(1, committed=True))
    log.high_watermark = visible  # as with visibility=flushed
    assert log.last_stable_offset == 0
    log.high_watermark = log.end_offset
    assert log.last_stable_offset == log.end_offset


def test_the_marker_may_have_a_newer_epoch(log: Log) -> None:
    append(log, in_transaction(1, 0))
    append(log, marker(1, committed=False, epoch=1))
    assert aborted_of(log) == [Aborted(1, 0, 1, 2)]
    append(log, in_transaction(1, 0, epoch=1))
    assert log.last_stable_offset == 2


def test_a_marker_of_no_transaction(log: Log) -> None:
    append(log, marker(1, committed=False))
    append(log, marker(1, committed=False))
    assert aborted_of(log) == []
    assert log.last_stable_offset == log.end_offset == 2


def test_who_may_not_end_a_transaction(log: Log) -> None:
    append(log, in_transaction(1, 0, epoch=2))
    with pytest.raises(ApiError) as refused:
        append(log, marker(1, committed=True, epoch=1))
    assert refused.value.code == ErrorCode.INVALID_PRODUCER_EPOCH
    append(log, marker(1, committed=True, epoch=2, coordinator=5))
    with pytest.raises(ApiError) as refused:
        append(log, marker(1, committed=True, epoch=2, coordinator=4))
    assert refused.value.code == ErrorCode.TRANSACTION_COORDINATOR_FENCED
    assert log.end_offset == 2


def test_no_write_outside_of_an_open_transaction(log: Log) -> None:
    append(log, in_transaction(1, 0))
    with pytest.raises(ApiError) as refused:
        append(log, make_batch([b"x"], producer=(1, 0, 1)))
    assert refused.value.code == ErrorCode.INVALID_TXN_STATE


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("lost", [[], [".snapshot"]])
def test_opened_again(log: Log, clean: bool, lost: list[str]) -> None:
    write(log)
    log.close()
    for path in Path(log.directory).iterdir():
        if path.suffix in lost or (path.suffix == ".txnindex" and not clean):
            path.unlink()
    again = open_in(log.directory, log.config, clean=clean)
    again.high_watermark = again.end_offset
    assert again.last_stable_offset == 15
    assert aborted_of(again) == ABORTED
    assert contents(again) == contents(log)
    append(again, marker(3, committed=False))
    assert aborted_of(again) == [*ABORTED, Aborted(3, 15, 26, 27)]


def test_a_damaged_index_is_made_anew(log: Log) -> None:
    write(log)
    log.close()
    (path,) = Path(log.directory).glob("*.txnindex")
    data = path.read_bytes()
    for at in (0, 2, 10, 18):
        broken = bytearray(data)
        broken[at] ^= 0x80
        path.write_bytes(broken)
        assert aborted_of(open_in(log.directory, log.config)) == ABORTED
        assert path.read_bytes() == data


def test_recovery_cuts_the_marker_off(log: Log) -> None:
    write(log)
    log.close()
    segment = next(s for s in log.segments if len(s.transaction_index))
    found = segment.locate(14)
    assert found is not None
    with open(segment.path, "r+b") as file:
        file.truncate(found[0] + 70)
    again = open_in(log.directory, log.config, clean=False)
    assert again.end_offset == 14
    assert aborted_of(again) == []
    assert again.producers.transactions == {1: 0}
    assert not list(Path(log.directory).glob("*.txnindex"))


@pytest.mark.parametrize(
    ("offset", "opened", "aborted"),
    [
        (26, {3: 15}, ABORTED),
        (15, {}, ABORTED),
        (14, {1: 0}, []),
        (5, {1: 0, 2: 1}, []),
        (1, {1: 0}, []),
    ],
)
def test_truncated(log: Log, offset: int, opened: dict[int, int], aborted: list[Aborted]) -> None:
    write(log)
    log.truncate_to(offset)
    log.check_invariants()
    assert log.end_offset == offset
    assert log.producers.transactions == opened
    assert aborted_of(log) == aborted
    log.close()
    assert aborted_of(open_in(log.directory, log.config)) == aborted


def test_deleted_with_its_segment(log: Log) -> None:
    write(log)
    log.flush()
    assert len(list(Path(log.directory).glob("*.txnindex"))) == 1
    log.advance_start(20)
    files, _ = log.apply_retention(NOW)
    assert any(name.endswith(".txnindex.deleted") for name in files)
    assert not list(Path(log.directory).glob("*.txnindex"))
    assert aborted_of(log) == []
    assert log.last_stable_offset == 20, "never before the log start"
