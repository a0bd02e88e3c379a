"""Kafka's own kafka-consumer-groups on our groups: it agrees with ``tidelog groups``."""

import functools
import json

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from interop.building import heavy
from interop.java import WITH_TOOLS, tool
from support.cli import run
from support.waiting import until

pytestmark = heavy("java", "mvn")
COMMAND = "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand"


@pytest.fixture(params=WITH_TOOLS)
def kafka_groups(broker, request):
    where = ("--bootstrap-server", broker.bootstrap)
    return functools.partial(tool, COMMAND, *where, libraries=request.param)


def table(text):
    """The rows of a table, by the names in its heading."""
    lines = [line.split() for line in text.splitlines() if line.strip()]
    start = next(i for i, line in enumerate(lines) if line[0] == "GROUP")
    return [dict(zip(lines[start], line, strict=False)) for line in lines[start + 1 :]]


@pytest.fixture(params=["classic", "consumer"])
def group(broker, topic, request):
    """A topic with twenty records, and a group of the same name with one member."""
    producer = Producer({"bootstrap.servers": broker.bootstrap})
    for i in range(20):
        producer.produce(topic, b"%d" % i)
    assert producer.flush(60) == 0
    consumer = Consumer(
        {
            "bootstrap.servers": broker.bootstrap,
            "group.id": topic,
            "enable.auto.commit": False,
            "group.protocol": request.param,
        }
    )
    consumer.subscribe([topic])
    until(lambda: consumer.poll(0.1) or consumer.assignment(), "the assignment")
    consumer.commit(offsets=[TopicPartition(topic, 0, 5)], asynchronous=False)
    yield topic
    consumer.close()


def ours(broker, group):
    return json.loads(run("groups", "describe", group, "--json", bootstrap=broker.bootstrap).out)[0]


def test_describe_reset_and_delete(broker, kafka_groups, group):
    (row,) = table(kafka_groups("--describe", "--group", group))
    (mine,) = ours(broker, group)["partitions"]
    assert row["CURRENT-OFFSET"] == str(mine["committed"]) == "5"
    assert row["LOG-END-OFFSET"] == str(mine["end"]) == "20"
    assert row["LAG"] == str(mine["lag"]) == "15"
    assert row["CONSUMER-ID"] == mine["member"]
    assert row["HOST"] == f"/{mine['host']}"
    (state,) = table(kafka_groups("--describe", "--group", group, "--state"))
    assert "Stable" in state.values()
    assert group in kafka_groups("--list")
    reset = ("--reset-offsets", "--group", group, "--topic", group, "--to-earliest", "--execute")
    # With a member it refuses, as we do (and exits with 0 all the same).
    assert "current state is Stable" in kafka_groups(*reset)
    (member,) = ours(broker, group)["members"]
    assert member["partitions"] == [{"topic": group, "partition": 0}]


def test_reset_and_delete_of_an_idle_group(broker, kafka_groups, topic):
    producer = Producer({"bootstrap.servers": broker.bootstrap})
    for i in range(20):
        producer.produce(topic, b"%d" % i)
    assert producer.flush(60) == 0
    group = topic
    made = run("groups", "reset", group, "--topic", topic, "--to", "7", "--yes",
               bootstrap=broker.bootstrap)  # fmt: skip
    assert made.code == 0
    kafka_groups(
        "--reset-offsets", "--group", group, "--topic", topic, "--shift-by", "3",
        "--execute",
    )  # fmt: skip
    assert ours(broker, group)["partitions"][0]["committed"] == 10
    kafka_groups("--delete-offsets", "--group", group, "--topic", topic)
    assert ours(broker, group)["partitions"] == []
    kafka_groups("--delete", "--group", group)
    assert run("groups", "describe", group, bootstrap=broker.bootstrap).code == 1
