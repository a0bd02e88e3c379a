"""Logs that another broker has written, or whose journal is lost: nothing is used twice."""

from confluent_kafka import Consumer, Producer, TopicPartition
from support.client_records import batches_on_disk

from tidelog.testing import LocalBroker


def send(broker, count):
    producer = Producer({"bootstrap.servers": broker.bootstrap, "enable.idempotence": True})
    for n in range(count):
        producer.produce("t", str(n))
        producer.flush()


def read(broker, count):
    settings = {"group.id": "unused", "enable.auto.commit": False}
    consumer = Consumer({"bootstrap.servers": broker.bootstrap, **settings})
    consumer.assign([TopicPartition("t", 0, 0)])
    found = [message.value() for message in consumer.consume(count, 100)]
    consumer.close()
    return found


def test_producer_ids_go_on_after_those_in_the_logs(tmp_path):
    with LocalBroker(data=tmp_path / "data") as broker:
        send(broker, 3)
        broker.stop()
        (broker.data / "tidelog-keeper.journal").unlink()
        broker.start()
        send(broker, 2)  # with the same id and sequence it would be a duplicate
        assert read(broker, 5) == [b"0", b"1", b"2", b"0", b"1"]
        first, *_, last = batches_on_disk(broker, "t")
        assert last.producer_id > first.producer_id


def test_leader_epochs_go_on_after_those_in_the_logs(tmp_path):
    with LocalBroker(data=tmp_path / "data") as broker:
        send(broker, 3)
        broker.stop()
        epochs = broker.data / "t-0" / "leader-epoch-checkpoint"
        assert epochs.read_text() == "0\n1\n0 0\n"
        epochs.write_text("0\n2\n0 0\n7 3\n")  # another broker led, and wrote nothing
        broker.start()
        send(broker, 2)
        assert epochs.read_text() == "0\n2\n0 0\n8 3\n"
        assert read(broker, 5) == [b"0", b"1", b"2", b"0", b"1"]
        broker.restart()
        send(broker, 1)
        assert epochs.read_text() == "0\n2\n0 0\n8 3\n"


def test_committed_offsets_are_not_dropped_by_retention(tmp_path):
    name = "__consumer_offsets"
    with LocalBroker(data=tmp_path / "data") as broker:
        Producer({"bootstrap.servers": broker.bootstrap}).list_topics("t")
        broker.stop()
        (broker.data / "tidelog-keeper.journal").unlink()
        (broker.data / "t-0").rename(broker.data / f"{name}-0")
        broker.start()
        journal = (broker.data / "tidelog-keeper.journal").read_text()
    assert f"/config/topics/{name}" in journal
    assert "cleanup.policy" in journal
