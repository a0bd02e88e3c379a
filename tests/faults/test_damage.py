"""Files damaged while the broker was down: it starts, says what it did, and the log is valid.

One topic with many partitions; each partition gets a damage of its own, so that one start
of the real broker meets dozens.  (tests/log has every byte of every file, in process.)
"""

import re
import shutil

import pytest
from faults.seeds import seeded
from support.raw_client import RawClient, batch_of

from tidelog.log.segment import Segment
from tidelog.testing import LocalBroker
from tidelog.wire.batch import LENGTH_OVERHEAD

PARTITIONS = 48
BATCHES = 14
FILES = (".log", ".log", ".log", ".index", ".timeindex", ".snapshot", "leader-epoch-checkpoint")
FILES += ("partition.metadata",)
SETTINGS = {"log.segment.bytes": 3000, "log.index.interval.bytes": 300}


def values(index):
    return [b"%d/%d " % (index, n) + b"v" * 200 for n in range(BATCHES)]


@pytest.fixture(scope="module", params=["kill", "stop"])
def written(request, tmp_path_factory):
    """A data directory with full logs, left by kill -9 or by a clean stop."""
    data = tmp_path_factory.mktemp("written") / "data"
    with LocalBroker(SETTINGS, data=data) as broker:
        with RawClient(broker.port) as client:
            client.create_topic("d", partitions=PARTITIONS)
            for index in range(PARTITIONS):
                for n, value in enumerate(values(index)):
                    batch = batch_of(value, producer_id=1, producer_epoch=0, base_sequence=n)
                    assert client.produce("d", batch, partition=index).base_offset == n
        getattr(broker, request.param)()
    return data, request.param


def damage(path, rng, how):
    """Spoil one file; returns the first byte that is not as it was."""
    content = bytearray(path.read_bytes())
    at = rng.randrange(len(content)) if content else 0
    if how == "cut":
        del content[at:]
    elif how == "flip" and content:
        content[at] ^= rng.randrange(1, 256)
    elif how == "garbage":
        content[at:] = rng.randbytes(len(content) - at)
    elif how == "zeros":
        content[at:] = bytes(len(content) - at)
    path.write_bytes(content)
    return at


def whole_before(directory, base, position):
    """The end of the log in batches that end at or before ``position``, and where they end."""
    count, end = base, 0
    for at, header in Segment(str(directory), base).headers():
        if at + header.length + LENGTH_OVERHEAD > position:
            break
        count, end = header.last_offset + 1, at + header.length + LENGTH_OVERHEAD
    return count, end


def test_every_partition_is_damaged_in_its_own_way(written, tmp_path):
    source, end = written
    rng = seeded()
    data = tmp_path / "data"
    shutil.copytree(source, data)
    least, damaged, unseen = {}, {}, set()
    for index in range(PARTITIONS):
        directory = data / f"d-{index}"
        name = FILES[index % len(FILES)]
        # After a clean stop the newest segment is not read as a whole: Kafka's way too.
        how = (
            "cut"
            if end == "stop" and name == ".log"
            else rng.choice(("cut", "flip", "garbage", "zeros"))
        )
        paths = sorted(p for p in directory.iterdir() if p.name.endswith(name))
        path = paths[-1]
        least[index] = BATCHES
        if name == ".log":
            base = int(path.name[:20])
            whole = shutil.copytree(directory, tmp_path / "whole" / directory.name)
            at = damage(path, rng, how)
            least[index], batch_end = whole_before(whole, base, at)
            if how == "cut" and at == batch_end:
                unseen.add(index)  # a shorter log, but a whole one
        else:
            damage(path, rng, how)
        damaged[index] = f"{path.name} {how}"
    with LocalBroker(SETTINGS, data=data) as broker, RawClient(broker.port) as client:
        for index in range(PARTITIONS):
            found = client.read_values("d", partition=index)
            told = f"partition {index}, {damaged[index]}"
            assert found == values(index)[: len(found)], told
            if "partition.metadata" in told and not found:
                # It names another topic now; such a log is quarantined, with all its records.
                assert list(data.glob(f"d-{index}.*-stray")), told
                least[index] = 0
            assert len(found) >= least[index], told
            if len(found) < BATCHES and index not in unseen:
                assert re.search(rf"/d-{index}\b", broker.log), f"{told}: not a word about it"
            more = client.produce("d", batch_of(b"more"), partition=index)
            assert (more.error_code, more.base_offset) == (0, len(found)), told
        broker.restart()
        with RawClient(broker.port) as again:
            for index in range(PARTITIONS):
                assert again.read_values("d", partition=index)[-1] == b"more"
        assert "Traceback" not in broker.log, broker.log


BESIDE = [
    "recovery-point-offset-checkpoint",
    "replication-offset-checkpoint",
    "log-start-offset-checkpoint",
    ".kafka_cleanshutdown",
    ".lock",
    "tidelog-keeper.journal",
    "meta.properties",
]


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    """One partition, cleanly stopped: every file is there."""
    data = tmp_path_factory.mktemp("small") / "data"
    with LocalBroker(data=data) as broker, RawClient(broker.port) as client:
        client.create_topic("d")
        for value in values(0):
            client.produce("d", batch_of(value))
    return data


@pytest.mark.parametrize("name", BESIDE)
def test_the_files_beside_the_logs(small, tmp_path, name):
    rng = seeded()
    for how in ("flip", rng.choice(("cut", "garbage", "zeros"))):
        data = tmp_path / how / "data"
        shutil.copytree(small, data)
        damage(data / name, rng, how)
        broker = LocalBroker(data=data)
        try:
            broker.start()
        except RuntimeError as error:
            assert name == "meta.properties", f"{how}: {error}"
            assert "Error: " in str(error).splitlines()[-1], f"{how}: {error}"
            assert "Traceback" not in broker.log, broker.log
            continue
        with RawClient(broker.port) as client:
            if name != "tidelog-keeper.journal":
                assert client.read_values("d") == values(0), how
            else:
                # The topic may be forgotten; its records are not.
                assert [p for p in data.iterdir() if p.name.startswith("d-0")], how
            client.create_topic("new")
        assert broker.stop() == 0
        assert "Traceback" not in broker.log, broker.log
