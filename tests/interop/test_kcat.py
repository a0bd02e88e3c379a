"""kcat, a command line on whatever librdkafka the system has."""

import json
import subprocess
import threading

import pytest
from interop.peers import Kcat, needs_kcat
from support.client_records import CODECS, EDGES, Row, batches_on_disk, codecs_on_disk, compressible

pytestmark = needs_kcat
PEER = Kcat()
NUMBERED = [Row(None, b"%d" % i) for i in range(5)]


def plain(rows):
    """Without the timestamps, which are kcat's own."""
    return [row._replace(timestamp=0) for row in rows]


def consume(broker, topic, *flags):
    quick = ("-X", "fetch.wait.max.ms=20")  # then the end is told soon
    return PEER.run(broker.bootstrap, "-C", "-t", topic, "-e", "-q", *quick, *flags)


@pytest.mark.parametrize("codec", CODECS)
def test_codec(broker, topic, codec):
    PEER.write(broker.bootstrap, topic, compressible(), codec)
    assert codecs_on_disk(broker, topic) == {codec}
    assert plain(PEER.read(broker.bootstrap, topic, 3)) == plain(compressible())


def test_nulls_and_headers(broker, topic):
    rows = list(filter(PEER.can_write, EDGES))
    PEER.write(broker.bootstrap, topic, rows)
    assert plain(PEER.read(broker.bootstrap, topic, len(rows))) == plain(rows)


def test_idempotent_producer(broker, topic):
    PEER.run(
        broker.bootstrap, "-P", "-t", topic, "-X", "enable.idempotence=true", data=b"a\nb\nc\n"
    )
    found = batches_on_disk(broker, topic)
    assert found[0].producer_id >= 0
    assert [batch.base_sequence for batch in found] == [batch.base_offset for batch in found]
    assert sum(batch.count for batch in found) == 3


@pytest.mark.parametrize(
    ("start", "expected"), [("beginning", b"01234"), ("3", b"34"), ("-2", b"34"), ("end", b"")]
)
def test_start_position(broker, topic, start, expected):
    PEER.write(broker.bootstrap, topic, NUMBERED)
    assert consume(broker, topic, "-o", start, "-f", "%s") == expected


def test_start_at_a_time(broker, topic):
    for row in NUMBERED[:2]:  # two runs, so that the times differ
        PEER.write(broker.bootstrap, topic, [row])
    first, second = [row.timestamp for row in PEER.read(broker.bootstrap, topic, 2)]
    assert first < second
    assert consume(broker, topic, "-o", f"s@{first}", "-f", "%s") == b"01"
    assert consume(broker, topic, "-o", f"s@{second}", "-f", "%s") == b"1"
    query = PEER.run(broker.bootstrap, "-Q", "-t", f"{topic}:0:{second}")
    assert query == f"{topic} [0] offset 1\n".encode()


def test_metadata(broker, topic):
    PEER.write(broker.bootstrap, topic, NUMBERED)
    found = json.loads(PEER.run(broker.bootstrap, "-L", "-J", "-t", topic))
    assert found["brokers"] == [{"id": 0, "name": broker.bootstrap}]
    assert found["controllerid"] == 0
    [described] = found["topics"]
    assert described["topic"] == topic
    assert described["partitions"] == [
        {"partition": 0, "leader": 0, "replicas": [{"id": 0}], "isrs": [{"id": 0}]}
    ]


def test_a_waiting_consumer_is_woken(broker, topic):
    # The broker may wait for 30 s; only a record ends that sooner.
    PEER.write(broker.bootstrap, topic, NUMBERED[:1])
    command = ["kcat", "-b", broker.bootstrap, "-C", "-t", topic, "-u", "-q", "-o", "beginning"]
    command += ["-X", "fetch.wait.max.ms=30000", "-X", "socket.timeout.ms=60000"]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as consumer:
        too_late = threading.Timer(20, consumer.kill)
        too_late.start()
        try:
            assert consumer.stdout.readline() == b"0\n"
            for row in NUMBERED[1:]:
                PEER.write(broker.bootstrap, topic, [row])
                assert consumer.stdout.readline() == row.value + b"\n"
        finally:
            too_late.cancel()
            consumer.kill()


def test_big_message_and_too_large(broker, topic, tmp_path):
    file = tmp_path / "message"
    file.write_bytes(b"x" * 900_000)
    PEER.run(broker.bootstrap, "-P", "-t", topic, str(file))
    assert consume(broker, topic, "-f", "%S") == b"900000"
    file.write_bytes(b"x" * 2_000_000)
    with pytest.raises(subprocess.CalledProcessError) as failed:
        PEER.run(broker.bootstrap, "-P", "-t", topic, "-X", "message.max.bytes=5000000", str(file))
    assert b"Delivery failed for message: Broker: Message size too large" in failed.value.stderr


def test_an_unknown_topic(strict_broker, topic):
    with pytest.raises(subprocess.CalledProcessError) as failed:
        consume(strict_broker, topic)
    assert b"Unknown topic or partition" in failed.value.stderr
