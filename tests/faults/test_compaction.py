"""A broker that compacts while producers write, consumers read, and processes die."""

import contextlib
import os
import signal
import threading
from pathlib import Path

import pytest
from faults.seeds import seeded
from support.raw_client import RawClient, now_ms
from support.waiting import until

from tidelog.log.checkpoints import CLEANER, read_checkpoint
from tidelog.testing import LocalBroker
from tidelog.wire.batch import read_header
from tidelog.wire.compression import Codec
from tidelog.wire.messages.delete_topics import DeleteTopicsRequest, DeleteTopicsResponse
from tidelog.wire.records import decode_batch, encode_batch, split_batches

EAGER = {
    "log.cleaner.backoff.ms": 20,
    "log.segment.delete.delay.ms": 0,
    "log.flush.offset.checkpoint.interval.ms": 100,
}
COMPACTED = {
    "cleanup_policy": "compact",
    "segment_bytes": 20_000,
    "min_cleanable_dirty_ratio": 0.01,
    "delete_retention_ms": 0,
}


def send(client, topic, rows, **options):
    """Rows are (key, value); returns the base offset."""
    batch = encode_batch([(now_ms(), key, value, ()) for key, value in rows], **options)
    answer = client.produce(topic, batch)
    assert answer.error_code == 0, answer.error_code
    return answer.base_offset


def read_all(client, topic):
    """Every record, by a consumer that starts at the log start."""
    end = client.list_offset(topic, -1).offset
    records, offset = [], client.list_offset(topic, -2).offset
    while offset < end:
        (part,) = client.fetch((topic, 0, offset))
        assert part.error_code == 0, part.error_code
        batches = list(split_batches(part.records or b""))
        if not batches:
            break
        for batch in batches:
            records += [record for record in decode_batch(batch) if record.offset >= offset]
        offset = read_header(batches[-1]).last_offset + 1
    return records


def table(records):
    found = {}
    for record in records:
        found[record.key] = record.value
    return {key: value for key, value in found.items() if value is not None}


def children(pid):
    """The processes that a process has started."""
    found = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # a thread may end
            found += [int(child) for child in (task / "children").read_text().split()]
    return found


def fill(client, topic, rounds=60, keys=20, **options):
    expected = {}
    for i in range(rounds):
        rows = [(b"key-%d" % key, b"%d-%d" % (key, i) + bytes(60)) for key in range(keys)]
        expected.update(rows)
        send(client, topic, rows, **options)
    return expected


def test_a_table_is_compacted_and_stays_the_same(tmp_path):
    with LocalBroker(EAGER, data=tmp_path / "data") as broker, RawClient(broker.port) as client:
        client.create_topic("table", **COMPACTED)
        codecs = list(Codec)
        expected = {}
        for codec in codecs:
            expected.update(fill(client, "table", codec=codec))
        sent = 60 * 20 * len(codecs)
        gone = b"key-3"
        send(client, "table", [(gone, None)])
        del expected[gone]

        def compacted():
            # A tombstone goes in the round after the one that saw it: there must be news.
            expected.update(fill(client, "table", 4, keys=1))
            records = read_all(client, "table")
            assert table(records) == expected
            return len(records) < sent / 4 and gone not in {r.key for r in records}

        until(compacted, "compaction")
        offsets = [record.offset for record in read_all(client, "table")]
        assert offsets == sorted(set(offsets))
        assert offsets[-1] == client.list_offset("table", -1).offset - 1
        until(lambda: read_checkpoint(str(broker.data), CLEANER).get(("table", 0), 0) > 0)
        until(lambda: not children(broker.pid), "the end of the cleaner's process")
        before = read_all(client, "table")
        broker.restart()
        with RawClient(broker.port) as again:
            assert table(read_all(again, "table")) == table(before)
        assert "Traceback" not in broker.log


def test_compact_and_delete(tmp_path):
    """Both policies: old segments go even if a key has no newer record."""
    settings = {**EAGER, "log.retention.check.interval.ms": 50}
    with LocalBroker(settings, data=tmp_path / "data") as broker, RawClient(broker.port) as client:
        client.create_topic(
            "both", **{**COMPACTED, "cleanup_policy": "compact,delete", "retention_ms": 3_600_000}
        )
        old = now_ms() - 7_200_000
        batch = encode_batch([(old, b"old-%d" % i, bytes(100), ()) for i in range(150)])
        assert client.produce("both", batch).error_code == 0
        expected = fill(client, "both")
        until(lambda: client.list_offset("both", -2).offset >= 150, "retention")
        until(lambda: len(read_all(client, "both")) < 600, "compaction")
        assert table(read_all(client, "both")) == expected


def test_several_logs_at_a_time(tmp_path):
    settings = {
        **EAGER,
        "log.cleaner.threads": 2,
        "log.cleaner.io.max.bytes.per.second": 200_000,  # so that both are seen at work
    }
    with LocalBroker(settings, data=tmp_path / "data") as broker, RawClient(broker.port) as client:
        topics = ("one", "two", "three")
        for topic in topics:
            client.create_topic(topic, **COMPACTED)
        expected = {topic: fill(client, topic) for topic in topics}

        def two_at_work():
            for topic in topics:  # on a slow machine one is clean before the next is filled
                expected[topic].update(fill(client, topic, 10))
            return len(children(broker.pid)) == 2

        until(two_at_work, "two at work")
        for topic in topics:
            until(lambda t=topic: len(read_all(client, t)) < 600, "compaction")
            assert table(read_all(client, topic)) == expected[topic]
        until(lambda: not children(broker.pid), "the end of the cleaner's processes")
        assert "Traceback" not in broker.log, broker.log


class Writer(threading.Thread):
    """Counts up under a few keys, and knows what was acknowledged."""

    def __init__(self, broker, name, rng):
        super().__init__(daemon=True)
        self.broker, self.name, self.rng = broker, name, rng
        self.acknowledged, self.count = {}, 0
        self.stopped = threading.Event()
        self.sequence = 0

    def run(self):
        while not self.stopped.is_set():
            try:
                with RawClient(self.broker.port) as client:
                    while not self.stopped.is_set():
                        self.send(client)
            except OSError:
                self.stopped.wait(0.01)  # it is down; the next try finds out

    def send(self, client):
        self.count += 1
        rows = [
            (f"{self.name}-{self.rng.randrange(12)}".encode(), b"%d" % self.count + bytes(80))
            for _ in range(8)
        ]
        send(client, "table", rows, codec=self.rng.choice((Codec.NONE, Codec.LZ4)))
        for key, _ in rows:
            self.acknowledged[key] = self.count


def wait_for_progress(writers, count):
    goal = sum(writer.count for writer in writers) + count
    until(lambda: sum(writer.count for writer in writers) >= goal, "progress")


def number(value):
    return int(value.rstrip(b"\0"))


@pytest.mark.parametrize("victim", ["broker", "cleaner"])
def test_kill_9_while_it_compacts(tmp_path, victim):
    rng = seeded()
    settings = {**EAGER, "log.cleaner.io.max.bytes.per.second": rng.choice((10**7, 10**9))}
    with LocalBroker(settings, data=tmp_path / "data") as broker:
        with RawClient(broker.port) as client:
            client.create_topic("table", **COMPACTED)
        writers = [Writer(broker, f"w{i}", rng) for i in range(2)]
        for writer in writers:
            writer.start()
        try:
            for _ in range(4):
                wait_for_progress(writers, rng.randrange(50, 200))
                until(lambda: any(map(cleans, children(broker.pid))), "a cleaner")
                wait_for_progress(writers, rng.randrange(60))
                workers = [pid for pid in children(broker.pid) if cleans(pid)]
                if victim == "broker":
                    broker.kill()
                    broker.start()
                else:
                    for pid in workers:
                        with contextlib.suppress(ProcessLookupError):  # it has come to its end
                            os.kill(pid, signal.SIGKILL)
                for pid in workers:
                    until(lambda pid=pid: not running(pid), "the end of the cleaner")
                with RawClient(broker.port) as client:
                    check_table(client, writers)
        finally:
            for writer in writers:
                writer.stopped.set()
            for writer in writers:
                writer.join()
        with RawClient(broker.port) as client:
            total = client.list_offset("table", -1).offset
            until(lambda: len(read_all(client, "table")) < total / 3, "compaction")
            check_table(client, writers)
        assert "Traceback" not in broker.log, broker.log


def cleans(pid):
    """Not one that is about to become a cleaner's process, nor what is left of one."""
    try:
        with open(f"/proc/{pid}/cmdline") as file:
            return "cleaner_worker" in file.read()
    except (FileNotFoundError, ProcessLookupError):
        return False


def running(pid):
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rsplit(")", 1)[1].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


def check_table(client, writers):
    """Every key has what was acknowledged last, or something newer that was on its way."""
    expected = {key: count for w in writers for key, count in w.acknowledged.copy().items()}
    records = read_all(client, "table")
    found = {}
    last = -1
    for record in records:
        assert record.offset > last
        last = record.offset
        found[record.key] = number(record.value)
    for key, count in expected.items():
        assert found[key] >= count, key


def test_a_damaged_log_is_given_up_and_others_are_not(tmp_path):
    with (
        LocalBroker({**EAGER, "log.cleaner.enable": False}, data=tmp_path / "data") as broker,
        RawClient(broker.port) as client,
    ):
        for topic in ("sick", "well"):
            client.create_topic(topic, **COMPACTED)
            fill(client, topic)
    path = min((tmp_path / "data" / "sick-0").glob("*.log"))
    with path.open("r+b") as file:
        file.seek(500)
        file.write(b"spoilt")
    with LocalBroker(EAGER, data=tmp_path / "data") as broker, RawClient(broker.port) as client:
        until(lambda: len(read_all(client, "well")) < 600, "compaction")
        until(lambda: "it cannot be compacted" in broker.log)
        fill(client, "well")
        until(lambda: len(read_all(client, "well")) < 600, "compaction")
        assert broker.log.count("it cannot be compacted") == 1
        assert path.name in broker.log
        assert not list((tmp_path / "data" / "sick-0").glob("*.cleaned"))


def test_a_topic_is_deleted_while_it_is_compacted(tmp_path):
    settings = {**EAGER, "log.cleaner.io.max.bytes.per.second": 50_000}
    with LocalBroker(settings, data=tmp_path / "data") as broker, RawClient(broker.port) as client:
        for _ in range(3):
            client.create_topic("short", **COMPACTED)
            expected = fill(client, "short")
            until(lambda: list((tmp_path / "data" / "short-0").glob("*.cleaned")), "a copy")
            assert table(read_all(client, "short")) == expected
            answer = client.call(
                DeleteTopicsRequest(topic_names=["short"], timeout_ms=5000),
                DeleteTopicsResponse,
                5,
            )
            assert answer.responses[0].error_code == 0
        client.create_topic("short", **COMPACTED)
        expected = fill(client, "short")
        until(lambda: len(read_all(client, "short")) < 600, "compaction")
        assert table(read_all(client, "short")) == expected
        assert "Traceback" not in broker.log, broker.log


def test_a_clean_stop_does_not_wait_for_compaction(tmp_path):
    settings = {**EAGER, "log.cleaner.io.max.bytes.per.second": 50_000}
    with LocalBroker(settings, data=tmp_path / "data") as broker:
        with RawClient(broker.port) as client:
            client.create_topic("table", **COMPACTED)
            expected = fill(client, "table")
            until(lambda: list((tmp_path / "data" / "table-0").glob("*.cleaned")), "a copy")
            workers = children(broker.pid)
        assert broker.stop() == 0
        for pid in workers:
            until(lambda pid=pid: not running(pid), "the end of the cleaner")
        assert (tmp_path / "data" / ".kafka_cleanshutdown").exists()
        broker.start()
        with RawClient(broker.port) as client:
            assert table(read_all(client, "table")) == expected
        assert "Traceback" not in broker.log, broker.log
