"""``tidelog groups``, and whether kafka-python's admin client says the same."""

from __future__ import annotations

import re
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from kafka.admin import KafkaAdminClient
from support.cli import Command, on_terminal, run
from support.group_client import GroupClient
from support.waiting import until

from tidelog.client import admin, cluster
from tidelog.client import groups as asking
from tidelog.new_topic import NewTopic
from tidelog.testing import LocalBroker
from tidelog.topic_partition import TopicPartition as Partition
from tidelog.wire.messages.join_group import JoinGroupResponse


@pytest.fixture
def records(broker: LocalBroker, tidelog: Command, topic: str) -> str:
    """A topic with two partitions and fifty records in each."""
    keep = ["--config", "retention.ms=-1"]  # however old its records
    tidelog("topics", "create", topic, "--partitions", "2", *keep)
    producer = Producer({"bootstrap.servers": broker.bootstrap})
    for i in range(100):
        producer.produce(topic, f"{i}".encode(), partition=i % 2, timestamp=1_700_000_000_000 + i)
    assert producer.flush(100) == 0
    return topic


@pytest.fixture
def consumer(broker: LocalBroker, records: str):
    """A member of a group named like the topic, with its partitions."""
    found = Consumer(
        {
            "bootstrap.servers": broker.bootstrap,
            "group.id": records,
            "client.id": "reader",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
        }
    )
    found.subscribe([records])
    until(lambda: found.poll(0.1) and len(found.assignment()) == 2, "the assignment")
    found.commit(
        offsets=[TopicPartition(records, 0, 10, "ten"), TopicPartition(records, 1, 50)],
        asynchronous=False,
    )
    yield found
    found.close()


def test_lag_without_a_commit_is_not_known(
    broker: LocalBroker, tidelog: Command, records: str
) -> None:
    reader = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": f"{records}-new"})
    reader.subscribe([records])
    until(lambda: reader.poll(0.1) or len(reader.assignment()) == 2, "the assignment")
    found = tidelog("groups", "describe", f"{records}-new")
    assert "lag unknown (nothing is committed)" in found.lines[0]
    (group,) = tidelog("groups", "describe", f"{records}-new", "--json").json
    assert group["lag"] is None
    reader.commit(offsets=[TopicPartition(records, 0, 10)], asynchronous=False)
    found = tidelog("groups", "describe", f"{records}-new")
    assert "lag 40 and 1 partition unknown" in found.lines[0]
    described = tidelog("topics", "describe", "--json").json
    assert "__consumer_offsets" not in [topic["name"] for topic in described]
    (named,) = tidelog("topics", "describe", "__consumer_offsets", "--json").json
    assert named["internal"]
    reader.close()


def test_list_and_describe(tidelog: Command, consumer: Consumer, records: str) -> None:
    group = records
    assert [group, "Stable", "classic"] in [r.split() for r in tidelog("groups", "list").lines]
    row = {"group": group, "state": "Stable", "type": "classic", "protocol_type": "consumer"}
    assert row in tidelog("groups", "list", "--json", "--state", "stable").json
    for state in ("Empty", "reconciling"):
        assert row not in tidelog("groups", "list", "--json", "--state", state).json
    assert row in tidelog("groups", "list", "--json", "--type", "Classic").json
    assert row not in tidelog("groups", "list", "--json", "--type", "consumer").json
    (found,) = tidelog("groups", "describe", group, "--json").json
    assert (found["state"], found["protocol"], found["lag"]) == ("Stable", "range", 40)
    first, second = found["partitions"]
    assert (first["committed"], first["end"], first["lag"]) == (10, 50, 40)
    assert first["metadata"].rstrip("\0") == "ten"  # confluent-kafka adds a zero byte
    assert (first["client"], first["host"]) == ("reader", "127.0.0.1")
    assert (second["committed"], second["lag"]) == (50, 0)
    (member,) = found["members"]
    assert member["member"].startswith("reader-")
    assert len(member["partitions"]) == 2
    shown = tidelog("groups", "describe", group)
    assert shown.lines[0] == f"{group}  Stable, 1 member, range, lag 40, coordinator 0"
    assert shown.lines[2].split()[:5] == [records, "0", "10", "50", "40"]


def test_kafka_pythons_admin_client_agrees(
    broker: LocalBroker, tidelog: Command, consumer: Consumer, records: str
) -> None:
    group = records
    (ours,) = tidelog("groups", "describe", group, "--json").json
    admin = KafkaAdminClient(bootstrap_servers=broker.bootstrap)
    try:
        listed = {row["group_id"]: row for row in admin.list_groups()}
        assert listed[group]["group_state"] == ours["state"]
        theirs = admin.describe_groups([group])[group]
        assert theirs["group_state"] == ours["state"]
        assert theirs["protocol_data"] == ours["protocol"]
        (member,) = theirs["members"]
        assert member["member_id"] == ours["members"][0]["member"]
        assert member["client_id"] == ours["members"][0]["client"]
        rows = member["member_assignment"]["assigned_partitions"]
        theirs_assigned = [(r["topic"], p) for r in rows for p in r["partitions"]]
        assert sorted(theirs_assigned) == [
            (row["topic"], row["partition"]) for row in ours["members"][0]["partitions"]
        ]
        offsets = admin.list_group_offsets([group])[group]
        assert {(p.topic, p.partition): o.offset for p, o in offsets.items()} == {
            (row["topic"], row["partition"]): row["committed"] for row in ours["partitions"]
        }
        consumer.close()
        assert admin.delete_groups([group]) == {group: "OK"}
        assert tidelog("groups", "describe", group).code == 1
    finally:
        admin.close()


def test_reset_shows_the_plan_and_needs_yes(
    tidelog: Command, consumer: Consumer, records: str
) -> None:
    group = records
    active = tidelog("groups", "reset", group, "--to", "start", "--yes")
    assert active.code == 1
    assert f"group '{group}' has 1 member: stop its consumers first: reader-" in active.err
    assert "(client 'reader' at 127.0.0.1, silent for " in active.err
    consumer.close()
    plan = tidelog("groups", "reset", group, "--to", "-5")
    assert plan.code == 0
    assert [line.split() for line in plan.lines[1:]] == [
        [records, "0", "10", "45", "0", "50"],
        [records, "1", "50", "45", "0", "50"],
    ]
    assert "nothing was changed: add --yes" in plan.err

    def committed() -> list[int]:
        (found,) = tidelog("groups", "describe", group, "--json").json
        return [row["committed"] for row in found["partitions"]]

    assert committed() == [10, 50]
    done = tidelog("groups", "reset", group, "--to", "-5", "--yes")
    assert (done.code, done.lines[-1]) == (0, f"{group}: 2 offsets set")
    assert committed() == [45, 45]
    assert tidelog("groups", "reset", group, "--to", "@1700000000050", "--yes").code == 0
    assert committed() == [25, 25]
    one = ("--topic", records, "-p", "1")
    found = tidelog("groups", "reset", group, "--to", "start", *one, "--yes", "--json").json
    assert found["done"] is True
    assert committed() == [25, 0]


def test_reset_of_what_is_not_there(tidelog: Command, records: str) -> None:
    gone = tidelog("groups", "reset", "no-such-group", "--to", "start")
    assert gone.code == 1
    assert "there is no group 'no-such-group'" in gone.err
    assert "or give it a start with --topic" in gone.err
    assert tidelog("groups", "reset", "g", "--to", "nonsense").code == 2
    assert tidelog("groups", "reset", "g", "--to", "start", "-p", "0").code == 2
    far = tidelog("groups", "reset", "new", "--to", "5000", "--topic", records)
    assert far.code == 1
    assert f"{records}-0 has offsets 0 to 50, not 5000: use end" in far.err
    part = tidelog("groups", "reset", "new", "--to", "end", "--topic", records, "-p", "7")
    assert part.code == 1
    # A group that is not there yet can be given a start.
    group = f"new-{records}"
    made = tidelog("groups", "reset", group, "--to", "+3", "--topic", records, "--yes")
    assert made.code == 0
    assert f"group '{group}' does not exist yet: it will be created" in made.err
    (event,) = tidelog("groups", "explain", group, "--json").json["events"]
    assert event["event"] == "committed"
    assert f"client 'tidelog' at 127.0.0.1, which is no member, set {records}-0" in event["cause"]
    (found,) = tidelog("groups", "describe", group, "--json").json
    assert [row["committed"] for row in found["partitions"]] == [3, 3]


def test_delete(tidelog: Command, consumer: Consumer, records: str) -> None:
    group = records
    assert tidelog("groups", "delete", group).code == 2  # nobody is there to be asked
    active = tidelog("groups", "delete", group, "--yes")
    assert active.code == 1
    assert "has 1 member: stop its consumers first: reader-" in active.err
    consumer.close()
    assert tidelog("groups", "delete", group, "--yes").out == f"{group} deleted\n"
    again = tidelog("groups", "delete", group, "--yes", "--json")
    assert again.code == 1
    assert again.json[0]["deleted"] is False
    assert "the group id is empty" in tidelog("groups", "delete", "", "--yes").err


def test_explain(tidelog: Command, consumer: Consumer, records: str) -> None:
    consumer.close()
    found = tidelog("groups", "explain", records, "--json").json
    kinds = [event["event"] for event in found["events"]]
    assert kinds == ["joined", "rebalance", "generation", "stable", "left", "rebalance", "empty"]
    assert found["events"][1]["member"].startswith("reader-")
    assert "a new member joined: client 'reader'" in found["events"][1]["cause"]
    assert "CAUSE" in tidelog("groups", "explain", records).lines[0]
    assert tidelog("groups", "explain", "no-such-group").code == 1


def test_an_offset_that_was_removed_is_explained(
    tidelog: Command, consumer: Consumer, records: str
) -> None:
    consumer.close()
    tidelog("topics", "delete", records, "--yes")
    (found,) = tidelog("groups", "describe", records, "--json").json
    assert found["partitions"] == []
    assert [row["reason"] for row in found["removed_offsets"]] == ["the topic was deleted"] * 2
    assert "was removed at" in tidelog("groups", "describe", records).out


def test_a_group_that_has_lost_its_last_offset_is_explained() -> None:
    settings = {"offsets.retention.check.interval.ms": 20}
    with LocalBroker(settings) as broker, GroupClient(broker.port) as client:
        client.find()
        client.create_topic("t")
        assert client.commit("idle", "t", 9, version=4, retention_time_ms=1) == 0
        until(lambda: not client.list(), "the group to be forgotten")
        (found,) = run("groups", "describe", "idle", "--json", bootstrap=broker.bootstrap).json
        assert (found["state"], found["members"], found["lag"]) == ("Dead", [], None)
        assert "retention time" in found["removed_offsets"][0]["reason"]
        shown = run("groups", "describe", "idle", bootstrap=broker.bootstrap)
        assert "idle  Dead, 0 members" in shown.lines[0]
        assert "lag unknown (nothing is committed)" in shown.lines[0]
        assert "the offset of t-0 was removed at" in shown.lines[1]
        events = run("groups", "explain", "idle", bootstrap=broker.bootstrap)
        assert "offset gone" in events.lines[1]
        assert "t-0: " in events.lines[1]
        unknown = run("groups", "describe", "other", bootstrap=broker.bootstrap)
        assert (unknown.code, "there is no group 'other'" in unknown.err) == (1, True)


def test_who_is_waited_for(broker: LocalBroker, tidelog: Command, topic: str) -> None:
    """A consumer was killed, and its successor waits for it."""
    with GroupClient(broker.port) as killed, GroupClient(broker.port) as successor:
        killed.find(topic)
        old = killed.enter(topic, session_timeout_ms=60_000, rebalance_timeout_ms=60_000)
        first = successor.call(successor.join_request(topic), JoinGroupResponse, 9)
        successor.send(successor.join_request(topic, first.member_id), 9)
        until(lambda: killed.describe(topic).group_state != "Stable", "the rebalance")
        shown = tidelog("groups", "describe", topic)
        assert "PreparingRebalance, 2 members, " in shown.lines[0]
        assert "lag unknown (nothing is committed)" in shown.lines[0]
        (line,) = [line for line in shown.lines if "waiting for" in line]
        assert f"waiting for {old.member_id} (" in line
        assert "s, expires in " in line
        assert (
            shown.lines[-1] == "  which member has which partition is not known while rebalancing"
        )
        (found,) = tidelog("groups", "describe", topic, "--json").json
        waits = {row["member"]: row["waited_for"] for row in found["members"]}
        assert waits == {old.member_id: True, first.member_id: False}
        assert [row["partitions"] for row in found["members"]] == [None, None]
        assert f"waiting for {old.member_id} (client " in tidelog("groups", "explain", topic).out
        explained = tidelog("groups", "explain", topic, "--json").json["members"]
        assert {row["member"]: row["waited_for"] for row in explained} == waits
        assert all("partitions" not in row for row in explained), "not known here"
        for command in ("reset --to start", "delete"):
            refused = tidelog("groups", *command.split(), topic, "--yes")
            assert f"has 2 members: stop its consumers first: {old.member_id} (" in refused.err
        assert killed.leave(topic, {"member_id": old.member_id}).error_code == 0


def test_offsets_outside_the_log(broker: LocalBroker, tidelog: Command, topic: str) -> None:
    tidelog("topics", "create", topic, "--partitions", "3")
    for partition in ("0", "1", "2"):
        tidelog("produce", topic, "-p", partition, stdin="x\n" * 50)
    with GroupClient(broker.port) as client:
        client.find(topic)
        assert client.commit(topic, topic, 5, partition=0) == 0
        assert client.commit(topic, topic, 9999, partition=1) == 0
        assert client.commit(topic, topic, -1, partition=2) == 0  # as good as no commit
    tidelog("records", "delete", topic, "--before", "20", "--yes")
    (found,) = tidelog("groups", "describe", topic, "--json").json
    rows = [(row["lag"], row["note"]) for row in found["partitions"]]
    assert rows == [(30, "before the start"), (0, "beyond the end")]
    shown = tidelog("groups", "describe", topic)
    assert f"{topic}-0: 5 is before the start of the log, 20" in shown.lines[-2]
    assert f"{topic}-1: 9999 is beyond the end of the log, 50" in shown.lines[-1]


def test_errors_as_json(tidelog: Command, consumer: Consumer, records: str) -> None:
    """An error that concerns a group is in the answer and on standard error."""
    gone = "there is no group 'no-such-group'"
    described = tidelog("groups", "describe", records, "no-such-group", "--json")
    assert (described.code, gone in described.err) == (1, True)
    good, bad = described.json
    assert (good["error"], good["state"]) == (None, "Stable")
    assert gone in bad["error"]
    assert good.keys() == bad.keys()
    shown = tidelog("groups", "describe", "no-such-group", records)
    assert (shown.code, shown.lines[0].split()[0], gone in shown.err) == (1, records, True)
    explained = tidelog("groups", "explain", "no-such-group", "--json")
    assert (explained.code, gone in explained.err) == (1, True)
    assert gone in explained.json["error"]
    assert explained.json.keys() == tidelog("groups", "explain", records, "--json").json.keys()
    refused = tidelog("groups", "reset", records, "--to", "start", "--yes", "--json")
    assert (refused.code, refused.json["done"]) == (1, False)
    assert "stop its consumers first" in refused.json["error"]
    consumer.close()
    planned = tidelog("groups", "reset", records, "--to", "start", "--json")
    assert (planned.code, planned.json["error"]) == (0, None)
    assert planned.json.keys() == refused.json.keys()


def test_it_fits_on_a_terminal(broker: LocalBroker, consumer: Consumer, records: str) -> None:
    described = on_terminal("groups", "describe", records, bootstrap=broker.bootstrap)
    member = next(line for line in described if "reader-" in line)
    assert re.search(r" reader-[0-9a-f]{4}…$", member.rstrip())
    explained = on_terminal("groups", "explain", records, bootstrap=broker.bootstrap)
    assert re.match(r"\d\d:\d\d:\d\d  ", explained[2])
    assert max(map(len, explained)) <= 80


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_a_static_member(broker: LocalBroker, tidelog: Command, topic: str, protocol: str) -> None:
    tidelog("topics", "create", topic)
    settings = {"group.instance.id": "desk-1", "group.protocol": protocol, "client.id": "till"}
    reader = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": topic, **settings})
    reader.subscribe([topic])
    until(lambda: reader.poll(0.1) or reader.assignment(), "the assignment")
    lines = tidelog("groups", "describe", topic).lines
    assert lines[1].split()[-3:] == ["HOST", "INSTANCE", "CLIENT"]
    assert lines[2].split()[-3:] == ["127.0.0.1", "desk-1", "till"]
    reader.close()
    (found,) = tidelog("groups", "describe", topic, "--json").json
    assert [member["away"] for member in found["members"]] == [protocol == "consumer"]
    away = "(instance desk-1, till at 127.0.0.1): away; its place is kept for "
    assert (away in tidelog("groups", "describe", topic).out) == (protocol == "consumer")


def test_a_group_of_the_consumer_protocol(
    tidelog: Command, broker: LocalBroker, records: str
) -> None:
    consumer = Consumer(
        {
            "bootstrap.servers": broker.bootstrap,
            "group.id": records,
            "client.id": "reader",
            "group.protocol": "consumer",
            "enable.auto.commit": False,
        }
    )
    consumer.subscribe([records])

    def has_all() -> bool:
        consumer.poll(0.1)
        return len(consumer.assignment()) == 2

    until(has_all, "the assignment")
    consumer.commit(offsets=[TopicPartition(records, 0, 10)], asynchronous=False)
    assert [records, "Stable", "consumer"] in [r.split() for r in tidelog("groups", "list").lines]
    (found,) = tidelog("groups", "describe", records, "--json").json
    assert (found["state"], found["protocol"], found["lag"]) == ("Stable", "uniform", 40)
    assert found["type"] == "consumer"
    assert [row["client"] for row in found["partitions"]] == ["reader", "reader"]
    events = tidelog("groups", "explain", records, "--json").json["events"]
    assert [event["event"] for event in events][:3] == ["joined", "epoch", "stable"]
    refused = tidelog("groups", "reset", records, "--to", "start", "--yes")
    assert (refused.code, "stop its consumers first" in refused.err) == (1, True)
    consumer.close()
    one = ("--topic", records, "-p", "0")
    assert "1 offset set" in tidelog("groups", "reset", records, "--to", "0", *one, "--yes").out
    assert tidelog("groups", "delete", records, "--yes").out.strip() == f"{records} deleted"


def test_many_groups_are_described_with_few_questions(broker: LocalBroker, topic: str) -> None:
    asked: list[str] = []

    class Counting(cluster.Cluster):
        def ask(self, message: Any, *args: Any, **options: Any) -> Any:
            asked.append(type(message).__name__)
            return super().ask(message, *args, **options)

    names = [f"{topic}-{i}" for i in range(60)]
    with Counting(broker.bootstrap) as counting:
        admin.create_topics(counting, [NewTopic(topic, 2)])
        for i, name in enumerate(names):
            asking.set_offsets(counting, name, {Partition(topic, i % 2): 0})
        asked.clear()
        found = asking.describe_together(counting, [*names, "not-known"])
        assert len(asked) == 4
        assert sorted(found) == sorted(names)
        for i, name in enumerate(names):
            view, committed = found[name]
            assert view == asking.describe_group(counting, name)
            assert list(committed) == [Partition(topic, i % 2)]
            assert committed == asking.committed_offsets(counting, name)
