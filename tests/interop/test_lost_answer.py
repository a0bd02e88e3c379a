"""An answer is lost after the write: idempotent producers try again and leave one copy."""

import asyncio

import aiokafka
import kafka
import pytest
from confluent_kafka import Producer
from interop.kafkajs_driver import kafkajs, message
from interop.lossy_proxy import LossyProxy
from interop.peers import TIMEOUT, Confluent, needs_kafkajs
from support.client_records import Row

from tidelog.testing import LocalBroker


@pytest.fixture(scope="module")
def proxy():
    with LossyProxy() as proxy:
        settings = {"advertised.listeners": f"PLAINTEXT://127.0.0.1:{proxy.port}"}
        with LocalBroker(settings) as broker:
            proxy.broker_port = broker.port
            yield proxy


def with_confluent(bootstrap, topic, idempotent):
    failed = []
    producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": idempotent})
    for value in (b"lost", b"next"):
        producer.produce(topic, value, on_delivery=lambda error, _: failed.append(error))
        assert producer.flush(TIMEOUT) == 0
    assert failed == [None, None]


def with_kafka_python(bootstrap, topic, idempotent):
    producer = kafka.KafkaProducer(bootstrap_servers=bootstrap, enable_idempotence=idempotent)
    for value in (b"lost", b"next"):
        producer.send(topic, value).get(TIMEOUT)
    producer.close()


def with_aiokafka(bootstrap, topic, idempotent):
    async def send():
        async with aiokafka.AIOKafkaProducer(
            bootstrap_servers=bootstrap, enable_idempotence=idempotent
        ) as producer:
            for value in (b"lost", b"next"):
                await asyncio.wait_for(producer.send_and_wait(topic, value), TIMEOUT)

    asyncio.run(send())


def with_kafkajs(bootstrap, topic, idempotent):
    calls = [
        ["producer", "send", {"topic": topic, "messages": [message(Row(None, value))]}]
        for value in (b"lost", b"next")
    ]
    settings = {"idempotent": idempotent, "retry": {"initialRetryTime": 50, "retries": 5}}
    kafkajs(bootstrap, *calls, producer=settings)


@pytest.mark.parametrize("idempotent", [True, False])
@pytest.mark.parametrize(
    "send",
    [
        pytest.param(with_confluent, id="confluent"),
        pytest.param(with_kafka_python, id="kafka-python"),
        pytest.param(with_aiokafka, id="aiokafka"),
        pytest.param(with_kafkajs, id="kafkajs", marks=needs_kafkajs),
    ],
)
def test_lost_answer(proxy, topic, send, idempotent):
    bootstrap = f"127.0.0.1:{proxy.port}"
    proxy.lose_next_answer()
    send(bootstrap, topic, idempotent)
    assert proxy.lost == 1
    # Without idempotence the second attempt is a second record: the answer really was lost.
    expected = [b"lost", b"next"] if idempotent else [b"lost", b"lost", b"next"]
    rows = Confluent().read(bootstrap, topic, len(expected))
    assert [row.value for row in rows] == expected
