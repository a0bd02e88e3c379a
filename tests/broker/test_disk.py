"""A disk that fills up: errors for writers, service for readers, and then room again."""

import subprocess

import pytest
from support.raw_client import RawClient, batch_of

from tidelog.errors import ErrorCode
from tidelog.testing import LocalBroker
from tidelog.wire.messages.create_topics import (
    CreatableTopic,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from tidelog.wire.messages.describe_log_dirs import (
    DescribableLogDirTopic,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
)

MIB = 1 << 20


def mount(*options):
    return subprocess.run(["mount", *options], capture_output=True, text=True, check=False)


@pytest.fixture
def small_disk(tmp_path):
    """A file system of 8 MiB."""
    path = tmp_path / "disk"
    path.mkdir()
    done = mount("-t", "tmpfs", "-o", "size=8m", "tidelog-test", str(path))
    if done.returncode:
        pytest.skip(f"a small file system needs the right to mount: {done.stderr.strip()}")
    try:
        yield path
    finally:
        subprocess.run(["umount", "-l", str(path)], check=False)


@pytest.fixture
def running(small_disk):
    with LocalBroker(data=small_disk / "data") as broker, RawClient(broker.port) as client:
        client.create_topic("t")
        yield broker, client, small_disk


def fill(client):
    """Produce until the disk is full; how many batches went in."""
    count = 0
    while True:
        answer = client.produce("t", batch_of(b"%06d" % count + bytes(100_000)))
        if answer.error_code:
            assert answer.error_code == ErrorCode.KAFKA_STORAGE_ERROR
            assert "No space left" in answer.error_message or "full" in answer.error_message
            return count
        assert answer.base_offset == count
        count += 1
        assert count < 200


def test_a_full_disk(running):
    broker, client, disk = running
    filler = disk / "filler"
    filler.write_bytes(bytes(4 * MIB))
    count = fill(client)
    assert count > 10
    assert len(client.read_values("t")) == count, "reads go on"
    assert "cannot write" in broker.log
    topic = CreatableTopic(
        name="new", num_partitions=1, replication_factor=1, assignments=[], configs=[]
    )
    (disk / "rest").write_bytes(b"")
    with open(disk / "rest", "wb", buffering=0) as rest:
        try:
            while rest.write(bytes(4096)):
                pass
        except OSError:
            pass
    # The registry may still have had room for the name; the log had none.
    answer = client.call(CreateTopicsRequest(topics=[topic]), CreateTopicsResponse, 7).topics[0]
    assert answer.error_code in (0, ErrorCode.KAFKA_STORAGE_ERROR)
    if answer.error_code == 0:
        code = client.produce("new", batch_of(b"x")).error_code
        assert code == ErrorCode.KAFKA_STORAGE_ERROR
    created = answer.error_code == 0

    filler.unlink()
    (disk / "rest").unlink()
    assert client.produce("t", batch_of(b"room again")).base_offset == count
    assert "writing works again" in broker.log
    if not created:
        client.create_topic("new")
    assert client.produce("new", batch_of(b"x")).base_offset == 0
    broker.restart()
    with RawClient(broker.port) as again:
        values = again.read_values("t")
        assert len(values) == count + 1
        assert values[-1] == b"room again"


def test_stopping_on_a_full_disk_loses_nothing(running):
    broker, client, _ = running
    count = fill(client)
    broker.stop()
    broker.start()
    with RawClient(broker.port) as again:
        assert len(again.read_values("t")) == count


def test_log_directories(tmp_path):
    """Which log is where; a directory that is gone has an error, the others are described."""
    one, two = tmp_path / "one", tmp_path / "two"
    running = LocalBroker({"log.dirs": f"{one},{two}"}, data=tmp_path / "unused")
    with running as broker, RawClient(broker.port) as client:

        def described(topics):
            request = DescribeLogDirsRequest(topics=topics)
            answer = client.call(request, DescribeLogDirsResponse, 4)
            return {
                row.log_dir: (
                    row.error_code,
                    {(t.name, p.partition_index) for t in row.topics for p in t.partitions},
                )
                for row in answer.results
            }

        client.create_topic("a", partitions=2)
        client.create_topic("b", partitions=2)
        everything = described(None)
        assert {code for code, _ in everything.values()} == {0}
        on_one, on_two = everything[str(one)][1], everything[str(two)][1]
        assert len(on_one) == len(on_two) == 2
        assert on_one | on_two == {("a", 0), ("a", 1), ("b", 0), ("b", 1)}
        asked = [
            DescribableLogDirTopic(topic="a", partitions=[1, 1, 7]),
            DescribableLogDirTopic(topic="none", partitions=[0]),
        ]
        some = described(asked)
        assert some[str(one)][1] | some[str(two)][1] == {("a", 1)}
        two.rename(tmp_path / "gone")
        try:
            rest = described(None)
        finally:
            (tmp_path / "gone").rename(two)
        assert rest == {
            str(one): (0, on_one),
            str(two): (ErrorCode.KAFKA_STORAGE_ERROR, set()),
        }
        assert described(None) == everything
        assert "Traceback" not in broker.log
