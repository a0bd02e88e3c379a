"""``tidelog log``: what it shows, what it finds, and that recovery then does what it said."""

from __future__ import annotations

import json
import os
import re
import shutil
import struct
from pathlib import Path

import pytest
from support.cli import Result, run
from support.log import append, generator, log_config, make_batch, open_in

from tidelog.log import checkpoints
from tidelog.log.checkpoints import write_checkpoint
from tidelog.log.transaction_index import Aborted, TransactionIndex
from tidelog.testing import LocalBroker
from tidelog.wire.compression import Codec

BATCHES, PER_BATCH = 30, 5
CONFIG = log_config(segment_bytes=1000, index_interval_bytes=200)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A data directory after a clean stop: one log of several segments."""
    log = open_in(tmp_path / "t-0", CONFIG)
    for i in range(BATCHES):
        values = [b"value %d" % n for n in range(PER_BATCH)]
        times = [1_700_000_000_000 + 1000 * i + n for n in range(PER_BATCH)]
        append(log, make_batch(values, times, producer=(7, 0, i * PER_BATCH)))
    log.close()
    end = {("t", 0): BATCHES * PER_BATCH}
    for name in (checkpoints.RECOVERY_POINT, checkpoints.HIGH_WATERMARK):
        write_checkpoint(str(tmp_path), name, end)
    write_checkpoint(str(tmp_path), checkpoints.LOG_START, {})
    (tmp_path / ".kafka_cleanshutdown").write_text("{}")
    (tmp_path / "meta.properties").write_text("version=0\nbroker.id=0\ncluster.id=abc\n")
    return tmp_path


def segments(data: Path) -> list[Path]:
    return sorted((data / "t-0").glob("*.log"))


def check(data: Path, *options: str) -> tuple[int, list[dict]]:
    """Exit code and problems."""
    result = run("log", "check", str(data), "--json", *options)
    problems = [problem for log in result.json["logs"] for problem in log["problems"]]
    assert result.json["sound"] is (not problems)
    return result.code, problems


def flip(path: Path, position: int) -> None:
    content = bytearray(path.read_bytes())
    content[position] ^= 0x55
    path.write_bytes(content)


# -- check ----------------------------------------------------------------------


def test_a_sound_log(data: Path) -> None:
    result = run("log", "check", str(data), "--records")
    assert result.code == 0, result.out
    assert re.fullmatch(
        rf"sound    {data}/t-0: offsets 0 to 150, \d+ segments, 30 batches, 150 records, .* KiB\n",
        result.out,
    )
    assert len(segments(data)) > 2
    assert run("log", "check", str(data / "t-0")).code == 0


@pytest.mark.parametrize("clean", [True, False])
def test_a_batch_that_fails_its_crc(data: Path, clean: bool) -> None:
    if not clean:
        (data / ".kafka_cleanshutdown").unlink()
        write_checkpoint(str(data), checkpoints.RECOVERY_POINT, {("t", 0): 0})
    path = segments(data)[1]
    base = int(path.stem)
    flip(path, 100)
    code, (problem,) = check(data)
    assert code == 1
    assert problem["file"] == str(path)
    assert (problem["position"], problem["offset"]) == (0, base)
    assert "CRC" in problem["problem"]
    if clean:
        assert "remove .kafka_cleanshutdown" in problem["recovery"]
    else:
        later = len(segments(data)) - 2
        assert f"and {later} later segments go" in problem["recovery"]
        assert open_in(data / "t-0", CONFIG, clean=False).end_offset == base


def test_damage_below_the_recovery_point_is_not_looked_at(data: Path) -> None:
    (data / ".kafka_cleanshutdown").unlink()
    flip(segments(data)[0], 100)
    _, (problem,) = check(data)
    assert "does not look below its point (150)" in problem["recovery"]
    assert open_in(data / "t-0", CONFIG, clean=False, recovery_point=150).end_offset == 150


def test_a_torn_tail_is_found_after_a_clean_stop_too(data: Path) -> None:
    path = segments(data)[-1]
    size = path.stat().st_size
    os.truncate(path, size - 10)
    code, problems = check(data)
    assert code == 1
    tail = problems[0]
    assert "does not fit" in tail["problem"]
    assert tail["recovery"].startswith("the next start cuts the log here")
    missing = {os.path.basename(problem["file"]) for problem in problems[1:]}
    assert missing == {
        "00000000000000000150.snapshot",
        checkpoints.RECOVERY_POINT,
        checkpoints.HIGH_WATERMARK,
    }
    assert open_in(data / "t-0", CONFIG, clean=True).end_offset == tail["offset"] == 145


@pytest.mark.parametrize("seed", range(40))
def test_recovery_does_what_the_check_said(data: Path, seed: int) -> None:
    """Damage anywhere: after a crash the log ends where the first problem was found."""
    chance = generator("damage", seed)
    (data / ".kafka_cleanshutdown").unlink()
    write_checkpoint(str(data), checkpoints.RECOVERY_POINT, {})
    write_checkpoint(str(data), checkpoints.HIGH_WATERMARK, {})
    path = chance.choice(segments(data))
    size = path.stat().st_size
    kind = chance.choice(["flip", "cut", "zeros", "garbage", "repeat"])
    if kind == "flip":
        flip(path, chance.randrange(size))
    elif kind == "cut":
        os.truncate(path, chance.randrange(1, size))
    elif kind == "zeros":
        path.write_bytes(path.read_bytes()[: chance.randrange(1, size)] + bytes(300))
    elif kind == "garbage":
        path.write_bytes(path.read_bytes() + chance.randbytes(chance.randrange(1, 200)))
    else:
        path.write_bytes(path.read_bytes() * 2)
    _, problems = check(data)
    found = [problem for problem in problems if problem["file"].endswith(".log")]
    copy = data / "copy"
    shutil.copytree(data / "t-0", copy / "t-0")
    recovered = open_in(copy / "t-0", CONFIG, clean=False)
    end = recovered.end_offset
    recovered.close()
    if found:
        cut = [problem for problem in found if "cuts the log here" in problem["recovery"]]
        file, position = cut[0]["file"], cut[0]["position"]
        assert (copy / "t-0" / os.path.basename(file)).stat().st_size == position
        assert end < BATCHES * PER_BATCH or kind in ("garbage", "repeat")
    else:
        # A cut between two batches cannot be seen, nor a change outside of the CRC.
        assert kind in ("cut", "flip")
    after, problems = check(copy / "t-0")
    assert (after, problems) == (0, [])


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda data: data[:-3], "are not a multiple of 8"),
        (lambda data: data[:4] + struct.pack(">i", 17) + data[8:], "position 17, where no batch"),
        (lambda data: struct.pack(">i", 2) + data[4:], "entry 0 says offset"),
        (lambda data: data + data[:8], "not larger than the one before"),
    ],
)
def test_a_damaged_index(data: Path, damage, message: str) -> None:
    path = segments(data)[1].with_suffix(".index")
    path.write_bytes(damage(path.read_bytes()))
    code, (problem,) = check(data)
    assert (code, problem["file"]) == (1, str(path))
    assert message in problem["problem"]
    assert "nothing is lost" in problem["recovery"]


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda data: data[:-3], "are not a multiple of 12"),
        (lambda data: struct.pack(">q", 1) + data[8:], "is newer"),
        (lambda data: struct.pack(">q", 2**60) + data[8:12], "is so new"),
        (lambda data: data[:8] + struct.pack(">i", 10**6), "not in the segment"),
        (lambda data: data + data[:12], "not newer than the one before"),
    ],
)
def test_a_damaged_time_index(data: Path, damage, message: str) -> None:
    path = segments(data)[1].with_suffix(".timeindex")
    path.write_bytes(damage(path.read_bytes()))
    code, (problem,) = check(data)
    assert (code, problem["file"]) == (1, str(path))
    assert message in problem["problem"]


def test_the_zeros_of_an_index_that_kafka_left_are_no_damage(data: Path) -> None:
    for suffix in (".index", ".timeindex"):
        path = segments(data)[-1].with_suffix(suffix)
        path.write_bytes(path.read_bytes() + bytes(24 * 100))
    assert check(data) == (0, [])


def test_the_other_files(data: Path) -> None:
    log = data / "t-0"
    (log / f"{150:020d}.snapshot").write_bytes(b"\0\1nonsense")
    (log / f"{999:020d}.snapshot").write_bytes(
        (log / f"{segments(data)[1].stem}.snapshot").read_bytes()
    )
    (log / "leader-epoch-checkpoint").write_text("0\n2\n0 0\n")
    (log / "partition.metadata").write_text("version: 0\ntopic_id: short")
    (data / checkpoints.LOG_START).write_text("1\n0\n")
    (data / "meta.properties").write_text("nonsense")
    code, problems = check(data)
    assert code == 1
    found = {os.path.basename(problem["file"]): problem["recovery"] for problem in problems}
    assert found == {
        "00000000000000000150.snapshot": "it is removed and rebuilt from the log",
        "00000000000000000999.snapshot": "it is removed",
        "leader-epoch-checkpoint": "the broker begins with an empty list of epochs",
        "partition.metadata": "the topic's id is taken from the registry",
        checkpoints.LOG_START: "it is taken as empty: deleted records may come back",
        "meta.properties": "the broker does not know whose data this is",
    }


def test_records_inside_a_sound_batch(data: Path) -> None:
    """A batch with a right CRC around wrong records: only --records looks."""
    log = open_in(data / "u-0")
    batch = bytearray(make_batch([b"aaaa", b"bbbb"]))
    log.close()
    at = batch.index(b"aaaa") - 1
    batch[at] = 200  # the value's length
    from crc32c import crc32c

    batch[17:21] = crc32c(bytes(batch[21:])).to_bytes(4, "big")
    (data / "u-0" / f"{0:020d}.log").write_bytes(batch)
    assert check(data) == (0, [])
    code, (problem,) = check(data, "--records")
    assert code == 1
    assert "the records cannot be decoded" in problem["problem"]
    assert "consumers fail here" in problem["recovery"]


def test_a_running_broker_a_killed_one_and_a_stopped_one() -> None:
    with LocalBroker({"log.segment.bytes": 4096, "log.index.interval.bytes": 256}) as broker:

        def write() -> None:
            lines = "".join(f"line {i}\n" for i in range(1000))
            options = ("--batch-size", "20", "--acks", "1")
            result = run("produce", "t", *options, bootstrap=broker.bootstrap, stdin=lines)
            assert result.code == 0

        def sound() -> None:
            result = run("log", "check", str(broker.data), "--records")
            assert result.code == 0, result.out
            assert "records" in result.out

        write()
        sound()  # while it runs
        broker.kill()
        sound()
        broker.start()
        write()
        broker.stop()
        sound()
        dumped = run("log", "dump", str(broker.data / "t-0"), "--records", "--json")
        assert dumped.code == 0
        rows = [json.loads(line) for line in dumped.lines]
        records = [record for row in rows for record in row.get("records", ())]
        assert [record["offset"] for record in records] == list(range(2000))


@pytest.mark.parametrize(
    ("path", "code", "message"),
    [
        ("", 1, "holds no logs: give a data directory"),
        ("file", 2, "is a file: check its directory"),
        ("missing", 2, "does not exist"),
    ],
)
def test_what_cannot_be_checked(tmp_path: Path, path: str, code: int, message: str) -> None:
    (tmp_path / "file").write_text("")
    result = run("log", "check", str(tmp_path / path))
    assert (result.code, result.out) == (code, "")
    assert message in result.err


# -- dump -----------------------------------------------------------------------


def dump(*args: object) -> Result:
    return run("log", "dump", *map(str, args))


def test_batches_as_text_and_as_json(data: Path) -> None:
    path = segments(data)[0]
    text = dump(path)
    assert text.code == 0
    assert text.lines[0].startswith("offsets 0-4  position 0  ")
    assert "5 records  codec none  CreateTime 2023-11-14T22:13:20.000Z to" in text.lines[0]
    assert text.lines[0].endswith("epoch 0  producer 7/0 from 0")
    row = json.loads(dump(path, "--json").lines[0])
    assert row["file"] == str(path)
    assert (row["base_offset"], row["last_offset"], row["records_counted"]) == (0, 4, 5)
    assert row["fault"] is None
    assert "records" not in row


@pytest.mark.parametrize("codec", list(Codec))
def test_records_of_every_codec(tmp_path: Path, codec: Codec) -> None:
    log = open_in(tmp_path / "t-0")
    append(log, make_batch([b"text", None, b"\xff"], codec=codec))
    log.close()
    path = tmp_path / "t-0" / f"{0:020d}.log"
    lines = dump(path, "--records").lines
    assert f"codec {codec.name.lower()}" in lines[0]
    shown = [line.split("  key ")[1] for line in lines[1:]]
    assert shown == ["null  value 'text'", "null  value null", "null  value base64:/w=="]
    (row,) = [json.loads(line) for line in dump(path, "--records", "--json").lines]
    values = [record["value"] for record in row["records"]]
    assert values == ["text", None, {"base64": "/w=="}]


def test_the_other_files_as_text(data: Path) -> None:
    path = segments(data)[1]
    assert re.match(r"offset \d+  position \d+\n", dump(path.with_suffix(".index")).out)
    assert re.match(r"timestamp 2023-\S+  offset \d+\n", dump(path.with_suffix(".timeindex")).out)
    snapshot = dump(data / "t-0" / f"{150:020d}.snapshot").out
    assert snapshot.startswith(
        "producer id 7  producer epoch 0  last sequence 149  last offset 149"
    )
    assert dump(data / checkpoints.RECOVERY_POINT).out == "topic t  partition 0  offset 150\n"
    assert dump(data / "t-0" / "leader-epoch-checkpoint").out == "epoch 0  start offset 0\n"
    assert "cluster.id abc" in dump(data / "meta.properties").out


def test_aborted_transactions(tmp_path: Path) -> None:
    path = tmp_path / "t-0" / f"{0:020d}.txnindex"
    path.parent.mkdir()
    index = TransactionIndex(str(path), 0)
    index.add(Aborted(7, 3, 9, 10))
    index.flush()
    shown = "producer id 7  first offset 3  marker offset 9  last stable offset 10\n"
    assert dump(path).out == shown


def test_a_partition_is_all_its_files(data: Path) -> None:
    result = dump(data / "t-0")
    assert result.code == 0
    for name in os.listdir(data / "t-0"):
        assert str(data / "t-0" / name) in result.lines


def test_damage_is_shown_and_is_an_error(data: Path) -> None:
    path = segments(data)[0]
    flip(path, 100)
    os.truncate(path, path.stat().st_size - 10)
    result = dump(path)
    assert result.code == 1
    assert result.lines[0].endswith("DAMAGED: a batch does not match its CRC")
    assert result.lines[1].startswith("offsets 5-9")
    assert "DAMAGED: a batch of" in result.lines[-1]


def test_what_cannot_be_dumped(data: Path, tmp_path: Path) -> None:
    other = tmp_path / "notes.txt"
    other.write_text("hello")
    result = dump(other)
    assert result.code == 1
    assert "it is no file of a log" in result.err
    (tmp_path / "empty").mkdir()
    assert "holds no file of a log" in dump(tmp_path / "empty").err
    broken = data / "t-0" / f"{150:020d}.snapshot"
    broken.write_bytes(b"")
    assert dump(broken).err == f"Error: {broken}: it is cut short\n"


def test_nothing_is_changed(data: Path) -> None:
    def state() -> dict[str, tuple[int, bytes]]:
        return {
            str(path): (path.stat().st_mtime_ns, path.read_bytes())
            for path in data.rglob("*")
            if path.is_file()
        }

    flip(segments(data)[1], 100)
    before = state()
    check(data, "--records")
    dump(data / "t-0", "--records")
    assert state() == before
