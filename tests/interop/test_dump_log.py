"""Kafka's kafka-dump-log on our directories, with every check that it has."""

import re
from pathlib import Path
from random import Random

import pytest
from confluent_kafka import Producer
from interop.building import heavy
from interop.java import WITH_TOOLS, dump_log
from support.client_records import CODECS
from support.waiting import until

from tidelog.log.checkpoints import CLEANER, read_checkpoint
from tidelog.testing import LocalBroker

pytestmark = heavy("java", "mvn")
TOPIC = "tides"
# Of a compacted log the tool says that offsets are missing, and that a batch without records
# (which keeps its newest time) has none.
COMPACTION = re.compile(
    r"(?i)non-consecutive offsets|Found timestamp mismatch in :\S+\n"
    r"(  Index timestamp: \d+, log timestamp: -1\n)+"
)
SEGMENTS = {
    "log.segment.bytes": 200_000,
    "log.index.interval.bytes": 1000,
    "log.retention.check.interval.ms": 100,
    "log.segment.delete.delay.ms": 0,
}
COMPLAINTS = re.compile(
    r"^.*(?:isvalid: false|mismatch|exception|error|non-consecutive|out of order).*$", re.I | re.M
)
# Kafka 4.3's takes -1 for the offset before any segment, also where that does not begin at 0.
FIRST_OFFSET = re.compile(r"Non-consecutive offsets in \S+\n  -1 is followed by \d+\n(?!  )")


def write(broker, count, idempotent=True):
    """Records with every codec, each some hundred bytes that no codec makes much smaller."""
    random = Random(count)
    for codec in CODECS:
        settings = {"compression.type": codec, "enable.idempotence": idempotent, "linger.ms": 1}
        producer = Producer({"bootstrap.servers": broker.bootstrap, **settings})
        for n in range(count):
            value = random.randbytes(400).hex()
            producer.produce(TOPIC, value, f"{codec}-{n}", headers={"n": str(n)})
            if n % 50 == 0:
                producer.flush()  # ends a batch
        assert producer.flush(100) == 0


def files(data: Path, *kinds: str) -> str:
    return ",".join(
        str(path) for kind in kinds for path in sorted((data / f"{TOPIC}-0").glob(f"*.{kind}"))
    )


@pytest.fixture(params=WITH_TOOLS)
def dump(request):
    """Run the tool on the files of these kinds; it must find nothing wrong."""

    def run(data: Path, *flags: str, kinds: tuple[str, ...], compacted: bool = False) -> str:
        found = dump_log(request.param, *flags, "--files", files(data, *kinds))
        told = FIRST_OFFSET.sub("", COMPACTION.sub("", found) if compacted else found)
        assert not COMPLAINTS.findall(told)
        return found

    return run


@pytest.fixture
def check(dump):
    """Every check of every file; returns the offsets of all records."""

    def run(data: Path, *, compacted: bool = False) -> list[int]:
        log, indexes = ("log",), ("index", "timeindex")
        read = ("--deep-iteration", "--print-data-log")
        records = dump(data, *read, kinds=log, compacted=compacted)
        dump(data, kinds=(*indexes, "snapshot"), compacted=compacted)
        for flag in ("--index-sanity-check", "--verify-index-only"):
            dump(data, flag, kinds=indexes, compacted=compacted)
        assert not files(data, "txnindex")
        return [int(offset) for offset in re.findall(r"^\| offset: (\d+) ", records, re.M)]

    return run


def segments(data: Path) -> list[Path]:
    return sorted((data / f"{TOPIC}-0").glob("*.log"))


@pytest.mark.parametrize("idempotent", [True, False])
def test_rolls_and_clean_stops(check, tmp_path, idempotent):
    with LocalBroker(SEGMENTS, data=tmp_path / "data") as broker:
        write(broker, 300, idempotent)
        assert len(segments(broker.data)) > 3
        assert check(broker.data) == list(range(1500))  # while it runs
        broker.restart()
        write(broker, 100, idempotent)
    assert check(tmp_path / "data") == list(range(2000))


def test_killed(check, tmp_path):
    with LocalBroker(SEGMENTS, data=tmp_path / "data") as broker:
        write(broker, 200)
        broker.kill()
        assert check(broker.data) == list(range(1000))
        broker.start()
        assert check(broker.data) == list(range(1000))  # as recovered
        write(broker, 100)
        broker.kill()
        # The end of a batch that was being written: recovery cuts it off.
        with segments(broker.data)[-1].open("ab") as file:
            file.write(b"\0" * 7)
        broker.start()
        write(broker, 100)
    assert check(tmp_path / "data") == list(range(2000))


def test_retention(check, tmp_path):
    settings = {**SEGMENTS, "log.retention.bytes": 400_000}
    with LocalBroker(settings, data=tmp_path / "data") as broker:
        write(broker, 400)
        until(lambda: 1 < len(segments(broker.data)) < 4)
        offsets = check(broker.data)
    assert offsets[0] > 0
    assert offsets == list(range(offsets[0], 2000))
    assert check(tmp_path / "data") == offsets


def test_compacted(dump, check, tmp_path):
    """Every codec, tombstones with a delete horizon, empty batches, joined segments."""
    settings = {
        **SEGMENTS,
        "log.cleanup.policy": "compact",
        "log.cleaner.backoff.ms": 50,
        "log.cleaner.min.cleanable.ratio": 0.01,
        "log.flush.offset.checkpoint.interval.ms": 100,
    }
    with LocalBroker(settings, data=tmp_path / "data") as broker:
        for count in (150, 100, 100):
            write(broker, count)
            producer = Producer({"bootstrap.servers": broker.bootstrap})
            for n in range(0, 40, 2):
                producer.produce(TOPIC, None, f"gone-{count}-{n}")
            assert producer.flush(100) == 0
        end = 5 * 350 + 60
        last = int(segments(broker.data)[-1].stem)
        until(lambda: read_checkpoint(str(broker.data), CLEANER).get((TOPIC, 0), 0) >= last)
    offsets = check(tmp_path / "data", compacted=True)
    assert offsets == sorted(set(offsets))
    assert len(offsets) < 0.7 * end
    assert offsets[-1] == end - 1
    records = dump(tmp_path / "data", "--print-data-log", kinds=("log",), compacted=True)
    assert "deleteHorizonMs: OptionalLong[" in records
    assert re.search(r"count: 0 ", records)  # of a producer whose sequence still counts
