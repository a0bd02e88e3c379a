"""Kafka's own command-line tools against three brokers: replicas, elections, reassignments."""

import functools
import json

import pytest
from interop.building import heavy
from interop.java import WITH_TOOLS, tool
from support.waiting import until

from tidelog.testing import LocalCluster

pytestmark = heavy("java", "mvn")
TOOLS = "org.apache.kafka.tools"


@pytest.fixture(scope="module")
def cluster():
    with LocalCluster(3) as running:
        yield running
        for broker in running.brokers.values():
            assert "Traceback" not in broker.log, broker.log


@pytest.fixture(params=WITH_TOOLS)
def run(cluster, request):
    def run(name, *arguments):
        where = ("--bootstrap-server", cluster.bootstrap)
        return tool(f"{TOOLS}.{name}", *where, *arguments, libraries=request.param)

    return run


def described(run, topic):
    """{partition: (leader, replicas, in-sync replicas)}"""
    found = {}
    lines = run("TopicCommand", "--describe", "--topic", topic).splitlines()
    for line in (line for line in lines if "\tPartition: " in line):
        row = dict(part.split(": ", 1) for part in line.strip().split("\t") if ": " in part)
        lists = [[int(i) for i in row[name].split(",")] for name in ("Replicas", "Isr")]
        found[int(row["Partition"])] = (int(row["Leader"]), *lists)
    return found


def plan(path, topic, assignment):
    """A file of kafka-reassign-partitions."""
    partitions = [{"topic": topic, "partition": i, "replicas": r} for i, r in assignment.items()]
    path.write_text(json.dumps({"version": 1, "partitions": partitions}))
    return path


def test_reassignment(run, topic, tmp_path):
    reassign = "reassign.ReassignPartitionsCommand"
    run("TopicCommand", "--create", "--topic", topic, "--replica-assignment", "1:2,2:3")
    run("VerifiableProducer", "--topic", topic, "--max-messages", "200", "--acks", "-1")
    wish = tmp_path / "topics.json"
    wish.write_text(json.dumps({"version": 1, "topics": [{"topic": topic}]}))
    proposed = run(
        reassign, "--generate", "--broker-list", "2,3", "--topics-to-move-json-file", wish
    ).splitlines()
    current = json.loads(proposed[proposed.index("Current partition replica assignment") + 1])
    rows = sorted((row["partition"], row["replicas"]) for row in current["partitions"])
    assert rows == [(0, [1, 2]), (1, [2, 3])]
    new = json.loads(proposed[proposed.index("Proposed partition reassignment configuration") + 1])
    assert {i for row in new["partitions"] for i in row["replicas"]} == {2, 3}

    file = plan(tmp_path / "plan.json", topic, {0: [3, 1], 1: [2, 3]})
    done = run(reassign, "--execute", "--reassignment-json-file", file, "--throttle", "50000000")
    assert "Successfully started partition reassignments" in done
    verify = functools.partial(run, reassign, "--verify", "--reassignment-json-file", file)
    told = until(lambda: (text := verify()).count("is completed") == 2 and text, "the reassignment")
    assert f"Clearing topic-level throttles on topic {topic}" in told
    assert "No partition reassignments found." in run(reassign, "--list")
    replicas = {partition: row[1] for partition, row in described(run, topic).items()}
    assert replicas == {0: [3, 1], 1: [2, 3]}
    ends = [line.rpartition(":")[2] for line in run("GetOffsetShell", "--topic", topic).split()]
    assert sum(map(int, ends)) == 200


def test_preferred_leaders(run, cluster, topic):
    run("TopicCommand", "--create", "--topic", topic, "--replica-assignment", "1:2:3,2:3:1")
    assert [row[0] for row in described(run, topic).values()] == [1, 2]
    cluster.brokers[1].stop()
    try:
        until(lambda: described(run, topic)[0][0] != 1, "another leader")
        missing = run(
            "TopicCommand", "--describe", "--topic", topic, "--under-replicated-partitions"
        )
        assert missing.count("Partition: ") == 2
    finally:
        cluster.brokers[1].start()
    until(
        lambda: all(len(row[2]) == 3 for row in described(run, topic).values()),
        "all replicas to be in sync",
    )
    one = ("--topic", topic, "--partition", "0")
    told = run("LeaderElectionCommand", "--election-type", "preferred", *one)
    assert f"{topic}-0" in told
    assert [row[0] for row in described(run, topic).values()] == [1, 2]
    again = run("LeaderElectionCommand", "--election-type", "preferred", *one)
    assert "Valid replica already elected" in again


def test_log_dirs(run, cluster, topic):
    run("TopicCommand", "--create", "--topic", topic, "--replica-assignment", "1:3")
    found = run("LogDirsCommand", "--describe", "--topic-list", topic)
    [line] = [line for line in found.splitlines() if line.startswith("{")]
    holders = {
        row["broker"]: [part["partition"] for part in directory["partitions"]]
        for row in json.loads(line)["brokers"]
        for directory in row["logDirs"]
    }
    assert holders == {1: [f"{topic}-0"], 2: [], 3: [f"{topic}-0"]}
