"""Kafka's own command-line tools against a running broker."""

import functools
import json
import re

import pytest
from interop.building import heavy
from interop.java import WITH_TOOLS, tool
from support.waiting import until

from tidelog.testing import LocalBroker

pytestmark = heavy("java", "mvn")
TOOLS = "org.apache.kafka.tools"


@pytest.fixture(params=WITH_TOOLS)
def kafka(request):
    return functools.partial(tool, libraries=request.param)


@pytest.fixture
def run(kafka, broker):
    def run(name, *arguments, **more):
        return kafka(name, "--bootstrap-server", broker.bootstrap, *arguments, **more)

    return run


def test_topics(run, topic):
    topics = f"{TOOLS}.TopicCommand"
    new = ("--topic", topic, "--partitions", "2", "--config", "segment.bytes=2000000")
    assert f"Created topic {topic}." in run(topics, "--create", *new)
    assert "exists already" in run(topics, "--create", *new, code=1)
    assert topic in run(topics, "--list").split()
    run(topics, "--alter", "--topic", topic, "--partitions", "3")
    head, *rows = run(topics, "--describe", "--topic", topic).strip().splitlines()
    assert re.search(
        r"PartitionCount: 3\s+ReplicationFactor: 1\s+Configs: segment.bytes=2000000", head
    )
    assert [row.split("\t")[2:6] for row in rows] == [
        [f"Partition: {partition}", "Leader: 0", "Replicas: 0", "Isr: 0"] for partition in range(3)
    ]
    assert run(topics, "--describe", "--under-replicated-partitions") == ""
    run(topics, "--delete", "--topic", topic)
    assert "does not exist" in run(topics, "--describe", "--topic", topic, code=1)


def test_configs(run, topic):
    configs = "kafka.admin.ConfigCommand"
    mine = ("--entity-type", "topics", "--entity-name", topic)
    run(f"{TOOLS}.TopicCommand", "--create", "--topic", topic)
    run(configs, "--alter", *mine, "--add-config", "retention.ms=5000000")
    found = run(configs, "--describe", *mine)
    assert "retention.ms=5000000 sensitive=false" in found
    assert "DYNAMIC_TOPIC_CONFIG:retention.ms=5000000" in found
    run(configs, "--alter", *mine, "--delete-config", "retention.ms")
    assert "retention.ms" not in run(configs, "--describe", *mine)
    assert "segment.bytes=1073741824" in run(configs, "--describe", *mine, "--all")
    wrong = run(configs, "--alter", *mine, "--add-config", "retention.ms=soon", code=1)
    assert "InvalidConfigurationException" in wrong
    every = ("--entity-type", "brokers", "--entity-default")
    run(configs, "--alter", *every, "--add-config", "log.retention.ms=7000000")
    try:
        found = run(
            configs, "--describe", "--entity-type", "brokers", "--entity-name", "0", "--all"
        )
        assert "log.retention.ms=7000000" in found
    finally:
        run(configs, "--alter", *every, "--delete-config", "log.retention.ms")


def test_producer_performance_offsets_and_deleted_records(kafka, run, broker, topic, tmp_path):
    found = kafka(
        f"{TOOLS}.ProducerPerformance",
        *("--topic", topic, "--num-records", "20000", "--record-size", "500"),
        *("--throughput", "-1", "--producer-props", f"bootstrap.servers={broker.bootstrap}"),
        "compression.type=lz4",
    )
    assert "20000 records sent" in found
    offsets = f"{TOOLS}.GetOffsetShell"
    assert run(offsets, "--topic", topic) == f"{topic}:0:20000\n"
    assert run(offsets, "--topic", topic, "--time", "earliest") == f"{topic}:0:0\n"
    cut = {"topic": topic, "partition": 0, "offset": 15000}
    file = tmp_path / "offsets.json"
    file.write_text(json.dumps({"version": 1, "partitions": [cut]}))
    done = run(f"{TOOLS}.DeleteRecordsCommand", "--offset-json-file", file)
    assert f"partition: {topic}-0\tlow_watermark: 15000" in done
    assert run(offsets, "--topic", topic, "--time", "earliest") == f"{topic}:0:15000\n"


def test_verifiable_producer(run, topic):
    lines = run(f"{TOOLS}.VerifiableProducer", "--topic", topic, "--max-messages", "50")
    events = [json.loads(line) for line in lines.splitlines()]
    sent = [event for event in events if event["name"] == "producer_send_success"]
    assert sorted(int(event["value"]) for event in sent) == list(range(50))
    assert [event["offset"] for event in sent] == list(range(50))


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_verifiable_consumer(run, topic, protocol):
    run(f"{TOOLS}.VerifiableProducer", "--topic", topic, "--max-messages", "50")
    lines = run(
        f"{TOOLS}.VerifiableConsumer",
        *("--topic", topic, "--group-id", topic, "--group-protocol", protocol),
        *("--reset-policy", "earliest", "--max-messages", "50"),
    )
    events = [json.loads(line) for line in lines.splitlines() if line.startswith("{")]
    counts = [event["count"] for event in events if event["name"] == "records_consumed"]
    assert sum(counts) == 50
    committed = [event for event in events if event["name"] == "offsets_committed"]
    assert committed[-1]["success"]
    assert [row["offset"] for row in committed[-1]["offsets"]] == [50]
    assert topic in run(f"{TOOLS}.GroupsCommand", "--list")


def test_consumer_performance(run, topic):
    run(f"{TOOLS}.VerifiableProducer", "--topic", topic, "--max-messages", "500")
    read = ("--topic", topic, "--messages", "500", "--timeout", "30000")
    assert ", 500, " in run(f"{TOOLS}.ConsumerPerformance", *read)


def test_elections_and_reassignments_of_a_lone_broker(run, broker, topic, tmp_path):
    run(f"{TOOLS}.TopicCommand", "--create", "--topic", topic)
    elect = ("--election-type", "preferred", "--topic", topic, "--partition", "0")
    assert "already elected" in run(f"{TOOLS}.LeaderElectionCommand", *elect)
    reassign = f"{TOOLS}.reassign.ReassignPartitionsCommand"
    assert "No partition reassignments found." in run(reassign, "--list")
    as_it_is = {"topic": topic, "partition": 0, "replicas": [0], "log_dirs": [str(broker.data)]}
    file = tmp_path / "plan.json"
    file.write_text(json.dumps({"version": 1, "partitions": [as_it_is]}))
    done = run(reassign, "--execute", "--reassignment-json-file", file)
    assert "Successfully started" in done
    assert "is completed" in run(reassign, "--verify", "--reassignment-json-file", file)


def test_a_replica_moves_between_log_directories(kafka, tmp_path):
    one, two = tmp_path / "one", tmp_path / "two"
    with LocalBroker({"log.dirs": f"{one},{two}"}, data=tmp_path / "unused") as broker:
        where = ("--bootstrap-server", broker.bootstrap)
        kafka(f"{TOOLS}.TopicCommand", *where, "--create", "--topic", "t")
        kafka(f"{TOOLS}.ConsoleProducer", *where, "--topic", "t", data="one\ntwo\n")
        row = {"topic": "t", "partition": 0, "replicas": [0], "log_dirs": [str(two)]}
        plan = tmp_path / "plan.json"
        plan.write_text(json.dumps({"version": 1, "partitions": [row]}))
        reassign = f"{TOOLS}.reassign.ReassignPartitionsCommand"
        move = functools.partial(kafka, reassign, *where, "--reassignment-json-file", plan)
        assert "Successfully started moving log directory" in move("--execute")
        moved = "Reassignment of replica t-0-0 completed successfully."
        until(lambda: moved in move("--verify"), "the move")
        until(lambda: not (one / "t-0").exists(), "the old directory to go")
        read = ("--topic", "t", "--partition", "0", "--max-messages", "2", "--offset", "earliest")
        found = kafka(f"{TOOLS}.consumer.ConsoleConsumer", *where, *read)
        assert found.splitlines()[:2] == ["one", "two"]


def test_console(run, topic):
    run(f"{TOOLS}.ConsoleProducer", "--topic", topic, data="one\ntwo\nthree\n")
    read = ("--topic", topic, "--partition", "0", "--max-messages", "2")
    found = run(f"{TOOLS}.consumer.ConsoleConsumer", *read, "--offset", "1")
    assert found.splitlines() == ["two", "three", "Processed a total of 2 messages"]


def test_log_dirs(run, broker, topic):
    run(f"{TOOLS}.TopicCommand", "--create", "--topic", topic)
    found = run(f"{TOOLS}.LogDirsCommand", "--describe", "--topic-list", topic)
    [line] = [line for line in found.splitlines() if line.startswith("{")]
    [described] = json.loads(line)["brokers"]
    [directory] = described["logDirs"]
    assert (directory["error"], directory["logDir"]) == (None, str(broker.data))
    assert [row["partition"] for row in directory["partitions"]] == [f"{topic}-0"]


def test_cluster(kafka, broker):
    cluster = f"{TOOLS}.ClusterTool"
    where = ("--bootstrap-server", broker.bootstrap)
    assert re.fullmatch(r"Cluster ID: \S{22}\n", kafka(cluster, "cluster-id", *where))
    endpoints = kafka(cluster, "list-endpoints", *where).splitlines()[1].split()
    assert endpoints[:3] == ["0", "127.0.0.1", str(broker.port)]


def test_api_versions(run):
    found = run(f"{TOOLS}.BrokerApiVersionsCommand")
    assert "Produce(0): 0 to 13 [usable: 13]" in found
    assert "Fetch(1): 4 to 18 [usable: 18]" in found
