"""rust-rdkafka, with the librdkafka that it bundles."""

import pytest
from interop.building import HERE, build, heavy, run_build, run_fetch
from interop.drivers import Driver, DriverError
from support.client_records import (
    CODECS,
    EDGES,
    MINUTE,
    NOW,
    Row,
    batches_on_disk,
    codecs_on_disk,
    compressible,
)

pytestmark = heavy("cargo", "make", "cc")
_FOLDER = HERE / "rust"


def program():
    sources = [_FOLDER / "Cargo.toml", _FOLDER / "src" / "main.rs"]

    def compile_(folder):
        # No lock file: it would name a registry.  Cargo writes one here.
        run_fetch("cargo", "fetch", cwd=_FOLDER)
        command = ("cargo", "build", "--release", "--offline", "--quiet")
        run_build(*command, cwd=_FOLDER, CARGO_TARGET_DIR=str(folder))

    return build("rust", sources, compile_) / "release" / "tidelog-clients"


@pytest.fixture(scope="module")
def client():
    with Driver([program()]) as driver:
        yield driver


@pytest.mark.parametrize("codec", CODECS)
def test_codec(client, broker, topic, codec):
    settings = {"compression.type": codec}
    assert client.produce(broker.bootstrap, topic, compressible(), settings=settings) == [0, 1, 2]
    assert codecs_on_disk(broker, topic) == {codec}
    assert client.consume(broker.bootstrap, topic, 3) == compressible()


def test_nulls_empties_and_headers(client, broker, topic):
    client.produce(broker.bootstrap, topic, EDGES)
    assert client.consume(broker.bootstrap, topic, len(EDGES)) == EDGES


@pytest.mark.parametrize("idempotent", ["true", "false"])
def test_idempotent_producer(client, broker, topic, idempotent):
    settings = {"enable.idempotence": idempotent}
    client.produce(broker.bootstrap, topic, [Row(None, b"x")] * 100, settings=settings)
    found = batches_on_disk(broker, topic)
    assert {batch.producer_id >= 0 for batch in found} == {idempotent == "true"}


def test_big_message_and_too_large(client, broker, topic):
    settings = {"message.max.bytes": "5000000"}
    rows = [Row(None, b"x" * 900_000)]
    client.produce(broker.bootstrap, topic, rows, settings=settings)
    assert client.consume(broker.bootstrap, topic, 1) == rows
    with pytest.raises(DriverError, match="MessageSizeTooLarge"):
        client.produce(broker.bootstrap, topic, [Row(None, b"x" * 2_000_000)], settings=settings)


def test_start_at_an_offset_or_a_time(client, broker, topic):
    rows = [Row(None, b"%d" % i, timestamp=NOW + i * MINUTE) for i in range(5)]
    client.produce(broker.bootstrap, topic, rows)
    assert client.consume(broker.bootstrap, topic, 2, start=3) == rows[3:]
    assert client.consume(broker.bootstrap, topic, 3, time=NOW + MINUTE + 1) == rows[2:]
    assert client("list_offsets", broker.bootstrap, topic=topic) == [0, 5]


def test_admin(client, broker, topic):
    client("create_topic", broker.bootstrap, topic=topic)
    with pytest.raises(DriverError, match=r"(?i)exists"):
        client("create_topic", broker.bootstrap, topic=topic)
    found = client("metadata", broker.bootstrap)
    assert (found["brokers"], found["topics"][topic]) == ([0], 2)
    client("delete_topic", broker.bootstrap, topic=topic)
    assert topic not in client("metadata", broker.bootstrap)["topics"]
