"""Start, stop, kill, start again."""

import os
import shutil
import signal
import socket
import threading

import pytest
from support.raw_client import RawClient, batch_of
from support.waiting import until

from tidelog.testing import LocalBroker


@pytest.fixture
def data(tmp_path):
    return tmp_path / "data"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_clean_stop_does_not_wait_for_open_connections(data, number):
    with LocalBroker(data=data) as broker:
        clients = [RawClient(broker.port) for _ in range(50)]
        clients[0].create_topic("t")
        clients[0].produce("t", batch_of(b"kept"))
        for client in clients[1:]:
            client.send(client.fetch_request(("t", 0, 1), max_wait_ms=3_600_000), 12)
        process = broker.process
        process.send_signal(number)
        assert process.wait(100) == 0  # nobody waits for the fetches; `./dev bench` has the time
        assert (data / ".kafka_cleanshutdown").exists()
        assert (data / "t-0" / f"{1:020d}.snapshot").exists()
        for client in clients:
            client.sock.close()
        broker.start()
        assert not (data / ".kafka_cleanshutdown").exists()
        with RawClient(broker.port) as client:
            assert client.read_values("t") == [b"kept"]


def test_a_stop_says_what_is_not_on_disk(data):
    with LocalBroker(data=data) as broker:
        with RawClient(broker.port) as client:
            client.create_topic("t", partitions=2)
            for index in range(2):
                client.produce("t", batch_of(b"kept"), partition=index)
        shutil.rmtree(data / "t-0")
        assert broker.stop() == 1
        assert "stopped, but not everything is on disk" in broker.log
        assert f"{data / 't-0'}: No such file or directory;" in broker.log
        assert not (data / ".kafka_cleanshutdown").exists()
        broker.start()
        with RawClient(broker.port) as client:
            assert client.read_values("t", partition=1) == [b"kept"]
        assert broker.stop() == 0


def test_a_second_broker_on_the_same_data_is_refused_with_the_owners_pid(data):
    with LocalBroker(data=data) as owner:
        refused = pytest.raises(RuntimeError, match=f"process id {owner.pid}")
        with refused:
            LocalBroker(data=data).start()


def test_a_port_in_use_is_named(data):
    with socket.create_server(("", 0)) as taken:
        broker = LocalBroker(data=data)
        broker.port = taken.getsockname()[1]
        with pytest.raises(RuntimeError, match=r"port is in use; choose another"):
            broker.start()


def test_data_of_another_cluster_or_broker_is_refused(data):
    with LocalBroker(data=data):
        pass
    meta = data / "meta.properties"
    own = meta.read_text()
    meta.write_text("version=0\nbroker.id=0\ncluster.id=AAAAAAAAAAAAAAAAAAAAAA\n")
    with pytest.raises(RuntimeError, match="belongs to cluster AAAAAAAAAAAAAAAAAAAAAA"):
        LocalBroker(data=data).start()
    meta.write_text(own.replace("broker.id=0", "broker.id=5"))
    with pytest.raises(RuntimeError, match=r"belongs to broker 5.*--set broker.id=5"):
        LocalBroker(data=data).start()


def test_bad_settings_are_refused_at_start(data):
    for settings, message in [
        ({"log.segment.byte": 1}, "did you mean log.segment.bytes"),
        ({"num.partitions": "many"}, "num.partitions=many: it must be a whole number"),
        ({"num.partitions": 0}, "num.partitions=0: it must be between 1"),
    ]:
        with pytest.raises(RuntimeError, match=message):
            LocalBroker(settings, data=data).start()


def test_old_names_work_and_say_the_new_ones(data):
    with LocalBroker({"brokerid": 3, "log.file.size": 1_000_000}, data=data) as broker:
        assert "brokerid is called broker.id now" in broker.log
        assert "log.file.size is called log.segment.bytes now" in broker.log
        assert "broker.id=3" in (data / "meta.properties").read_text()


def test_topics_settings_and_records_survive_a_restart(data):
    with LocalBroker(data=data) as broker:
        with RawClient(broker.port) as client:
            topic_id = client.create_topic("t", partitions=2, retention_ms=12345)
            client.produce("t", batch_of(b"a"), partition=1)
        broker.restart()
        with RawClient(broker.port) as client:
            (part,) = client.fetch((topic_id, 1, 0), version=13)
            assert part.high_watermark == 1
            assert client.produce("t", batch_of(b"b"), partition=1).base_offset == 1


def test_a_lost_journal_does_not_lose_topics(data):
    with LocalBroker(data=data) as broker:
        with RawClient(broker.port) as client:
            topic_id = client.create_topic("kept", partitions=3)
            client.produce("kept", batch_of(b"a"), partition=2)
        broker.stop()
        (data / "tidelog-keeper.journal").unlink()
        broker.start()
        with RawClient(broker.port) as client:
            assert client.read_values("kept", partition=2) == [b"a"]
            assert client.fetch((topic_id, 2, 0), version=13)[0].error_code == 0


def test_topics_that_are_taken_in_keep_their_records(data):
    """Nobody knows the settings that they had, so nothing old may be deleted."""
    with LocalBroker(data=data) as broker:
        with RawClient(broker.port) as client:
            client.create_topic("old", retention_ms=-1)
            client.produce("old", batch_of(b"from 1970", timestamp=1000))
        broker.stop()
        (data / "tidelog-keeper.journal").unlink()
        again = LocalBroker({"log.retention.check.interval.ms": 10}, data=data)
        with again, RawClient(again.port) as client:
            client.create_topic("marker", segment_bytes=1000, retention_bytes=1000)
            for _ in range(10):
                client.produce("marker", batch_of(bytes(900)))
            until(lambda: client.list_offset("marker", -2).offset, "retention to have run")
            assert client.read_values("old") == [b"from 1970"]


def test_the_journal_is_found_in_whichever_directory_it_is(data, tmp_path):
    with LocalBroker(data=data) as broker, RawClient(broker.port) as client:
        client.create_topic("t")
        client.produce("t", batch_of(b"a"))
    both = f"{tmp_path / 'new-disk'},{data}"
    with LocalBroker({"log.dirs": both}, data=tmp_path / "unused") as broker:
        assert "adopted" not in broker.log
        with RawClient(broker.port) as client:
            assert client.read_values("t") == [b"a"]


def test_an_older_topic_of_the_same_name_is_set_aside(data):
    with LocalBroker(data=data) as broker:
        with RawClient(broker.port) as client:
            client.create_topic("t")
            client.produce("t", batch_of(b"of the new topic"))
        broker.stop()
        (data / "t-0" / "partition.metadata").write_text("version: 0\ntopic_id: " + "A" * 22)
        broker.start()
        with RawClient(broker.port) as client:
            assert client.read_values("t") == []
        assert [p.name for p in data.iterdir() if p.name.endswith("-stray")]


def test_a_log_of_no_known_topic_is_set_aside_not_deleted(data):
    with LocalBroker(data=data) as broker:
        with RawClient(broker.port) as client:
            client.create_topic("t")
            client.produce("t", batch_of(b"a"))
        broker.stop()
        os.rename(data / "t-0", data / "stranger-0")
        broker.start()
        assert "stranger-0 is of no known topic" in broker.log
        assert [p.name for p in data.iterdir() if p.name.endswith("-stray")]


def test_nothing_acknowledged_is_lost_by_kill_9(data):
    with LocalBroker(data=data) as broker:
        with RawClient(broker.port) as client:
            client.create_topic("t")
        for _ in range(3):
            acknowledged = _produce_until_killed(broker)
            broker.start()
            with RawClient(broker.port) as client:
                values = client.read_values("t")
            assert set(acknowledged) <= set(values)
            assert len(values) == len(set(values))


def _produce_until_killed(broker):
    """Write as fast as possible, kill -9 in the middle; what was acknowledged."""
    acknowledged = []
    enough = threading.Event()

    def write():
        with RawClient(broker.port) as client:
            while True:
                value = os.urandom(16)
                try:
                    if client.produce("t", batch_of(value)).error_code == 0:
                        acknowledged.append(value)
                except OSError:
                    return
                if len(acknowledged) > 200:
                    enough.set()

    writer = threading.Thread(target=write)
    writer.start()
    assert enough.wait(100)
    broker.kill()
    writer.join()
    return acknowledged
