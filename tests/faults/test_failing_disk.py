"""A disk that fills up, refuses to write or turns read-only in the middle of load.

Producers get a storage error, readers go on, and writing resumes by itself when it can.

``prlimit --fsize=0`` on the running broker makes the kernel refuse every write to a file;
a file system with an error turns read-only under its users (``errors=remount-ro``), which
``mount`` refuses to do.
"""

import os
import resource
import shutil

import pytest
from faults.history import History
from faults.load import RawWriter, Reader, whole_log
from support.mounting import run
from support.raw_client import RawClient, batch_of
from support.waiting import until

from tidelog.errors import ErrorCode
from tidelog.testing import LocalBroker

MIB = 1 << 20


class Busy:
    """Writers and readers on two partitions of a broker."""

    def __init__(self, broker, names=("raw", "plain")):
        self.broker, self.history = broker, History()
        self.writers, self.readers = [], []
        for index in range(2):
            at = (self.history, broker.port, "t", index)
            self.writers += [
                RawWriter(*at, f"{names[0]}{index}", idempotent=True, size=1000),
                RawWriter(*at, f"{names[1]}{index}", idempotent=False, size=1000),
            ]
            self.readers.append(Reader(*at, f"reader{index}"))

    def __enter__(self):
        for worker in (*self.writers, *self.readers):
            worker.start()
        return self

    def __exit__(self, kind, *_):
        for worker in (*self.writers, *self.readers):
            worker.stop()
        if kind is None:
            for worker in (*self.writers, *self.readers):
                worker.done()

    def goes_on(self):
        """Every writer is acknowledged again."""
        counts = self.history.counts
        goals = {writer.name: counts[writer.name] + 50 for writer in self.writers}
        until(lambda: all(counts[name] >= goal for name, goal in goals.items()), "writing")

    def is_refused(self):
        """Every writer gets errors now."""
        before = {writer.name: writer.retriable for writer in self.writers}
        until(lambda: all(w.retriable > before[w.name] + 1 for w in self.writers), "errors")
        code = ErrorCode.KAFKA_STORAGE_ERROR
        assert all(f"error {int(code)}:" in w.trouble for w in self.writers), [
            w.trouble for w in self.writers
        ]

    def reads(self):
        """Readers get to the end, and one that comes now reads everything."""
        for index, reader in enumerate(self.readers):
            end = self.history.acknowledged_end(index)
            until(lambda reader=reader, end=end: reader.offset >= end, "the readers")
            records, _ = whole_log(self.broker.port, "t", index)
            assert len(records) >= end

    def check(self):
        for index in range(2):
            self.history.check(index, *whole_log(self.broker.port, "t", index))


def create_topic(broker, **config):
    with RawClient(broker.port) as client:
        client.create_topic("t", partitions=2, segment_bytes=MIB, **config)


def on_disk(tmp_path, disk):
    """A broker with its data there; what it says goes elsewhere."""
    (disk / "data").mkdir()
    (tmp_path / "data").symlink_to(disk / "data")
    return LocalBroker(data=tmp_path / "data")


def test_a_disk_that_fills_up_under_load(mounted, tmp_path):
    disk = mounted("-t", "tmpfs", "-o", "size=24m", "tidelog-test")
    with on_disk(tmp_path, disk) as broker:
        create_topic(broker)
        with Busy(broker) as busy:
            busy.goes_on()
            filler = disk / "filler"
            with pytest.raises(OSError, match="No space left"), filler.open("wb") as file:
                while True:
                    file.write(bytes(65536))
            busy.is_refused()
            busy.reads()
            run("mount", "-o", "remount,size=200m", str(disk))
            busy.goes_on()
        assert "reads go on, writes are refused" in broker.log
        assert "writing works again" in broker.log
        busy.check()
        broker.kill()
        broker.start()
        busy.check()
        assert "Traceback" not in broker.log


def test_every_write_is_refused_for_a_while(tmp_path):
    with LocalBroker(data=tmp_path / "data") as broker:
        create_topic(broker)
        with Busy(broker) as busy:
            for _ in range(3):
                busy.goes_on()
                limits = resource.prlimit(broker.pid, resource.RLIMIT_FSIZE, (0, -1))
                busy.is_refused()
                busy.reads()
                with RawClient(broker.port) as client:
                    answer = client.produce("t", batch_of(b"raw0:-1:"), acks=1)
                    assert answer.error_code == ErrorCode.KAFKA_STORAGE_ERROR
                    assert "cannot write" in answer.error_message
                resource.prlimit(broker.pid, resource.RLIMIT_FSIZE, limits)
            busy.goes_on()
        busy.check()
        broker.restart()
        busy.check()
        assert "Traceback" not in broker.log


def test_a_file_system_that_turns_read_only(mounted, tmp_path):
    """Nothing that was acknowledged before the error is lost.

    Of what is flushed while ext4 aborts its journal no broker can promise anything.  An
    fdatasync that meets the abort may find that its transaction is neither running nor
    committing any more, takes it for committed and returns success; the mount that follows
    does not find it in the journal.  A loop of pwrite and fdatasync on one descriptor, without
    a broker, lost its last write in 3 of 25 such errors (Linux 6.18).  So what was acknowledged
    after the error may be missing, from the end; what is there must be as it was.
    """
    image = tmp_path / "image"
    with image.open("wb") as file:
        file.truncate(64 * MIB)
    if not shutil.which("mkfs.ext4") or run("mkfs.ext4", "-q", "-F", str(image)).returncode:
        pytest.skip("this test needs mkfs.ext4")
    options = ("-o", "loop,errors=remount-ro", str(image))
    disk = mounted(*options)
    device = run("findmnt", "-no", "SOURCE", str(disk)).stdout.strip()
    trigger = f"/sys/fs/ext4/{os.path.basename(device)}/trigger_fs_error"
    if not os.access(trigger, os.W_OK):
        pytest.skip("this kernel cannot simulate an error of ext4")
    with on_disk(tmp_path, disk) as broker:
        create_topic(broker, flush_messages=1)
        with Busy(broker) as before:
            before.goes_on()
            promised = [before.history.acknowledged_end(index) for index in range(2)]
            with open(trigger, "w") as file:
                file.write("a test")
            before.is_refused()
            before.reads()
        assert "Read-only file system; reads go on" in broker.log
        assert broker.stop() == 1, "it stops in order, and says what it could not flush"
        assert "stopped, but not everything is on disk" in broker.log
        assert run("umount", str(disk)).returncode == 0
        mounted(*options)
        broker.start()
        for index, end in enumerate(promised):
            records, high_watermark = whole_log(broker.port, "t", index)
            assert high_watermark == len(records) >= end
            before.history.forget(index, high_watermark)
        with Busy(broker, names=("later raw", "later plain")) as after:
            after.goes_on()
        before.check()
        after.check()
        assert "Traceback" not in broker.log
