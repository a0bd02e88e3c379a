"""``tidelog topics``, ``configs`` and ``records``."""

from __future__ import annotations

from typing import Any

import pytest
from support.cli import Command, run

from tidelog.client import admin
from tidelog.client.cluster import Cluster
from tidelog.client.connection import BrokerUnreachable
from tidelog.client.partitions import in_requests
from tidelog.errors import ApiError
from tidelog.new_topic import NewTopic
from tidelog.testing import LocalBroker
from tidelog.views import topics as describing


def test_create_list_describe_delete(tidelog: Command, topic: str) -> None:
    created = tidelog("topics", "create", topic, "--partitions", "2", "--config", "retention.ms=99")
    assert (created.code, created.out) == (0, f"{topic} created: 2 partitions, 1 replica\n")
    assert [topic, "2", "1"] in [line.split() for line in tidelog("topics", "list").lines]
    row = {"name": topic, "partitions": 2, "replication_factor": 1, "internal": False}
    assert row in tidelog("topics", "list", "--json").json
    tidelog("produce", topic, "--acks", "1", "-p", "1", stdin="a\nb\n")
    described = tidelog("topics", "describe", topic)
    assert described.lines[0].startswith(f"{topic}  2 partitions, 1 replica, 2 records")
    assert "  retention.ms=99" in described.lines
    assert described.lines[-1].split()[:7] == ["1", "0", "0", "0", "0", "2", "2"]
    deleted = tidelog("topics", "delete", topic, "--yes")
    assert (deleted.code, deleted.out) == (0, f"{topic} deleted\n")


def test_describe_as_json(tidelog: Command, topic: str) -> None:
    tidelog("topics", "create", topic)
    tidelog("produce", topic, "--acks", "1", stdin="a\nb\n")
    (found,) = tidelog("topics", "describe", topic, "--json").json
    assert found["name"] == topic
    assert len(found["topic_id"]) == 22
    (part,) = found["partitions"]
    assert part.pop("bytes") > 61
    assert part == {
        "partition": 0,
        "leader": 0,
        "leader_epoch": 0,
        "replicas": [0],
        "isr": [0],
        "adding": [],
        "offline": [],
        "start": 0,
        "end": 2,
        "offsets": 2,
        "records": 2,
    }


class CountingCluster(Cluster):
    """Counts what it asks."""

    asked = 0

    def ask(self, *args: Any, **options: Any) -> Any:
        self.asked += 1
        return super().ask(*args, **options)


def test_many_topics_are_described_with_few_questions(broker: LocalBroker, topic: str) -> None:
    """With a question for each of a thousand topics it takes minutes."""
    names = [f"{topic}-{i:02d}" for i in range(60)]
    counting = CountingCluster(broker.bootstrap)
    with counting as cluster:
        admin.create_topics(cluster, [NewTopic(name, 2) for name in names])
        views = list(cluster.topics(names).values())
        counting.asked = 0
        answers = describing.ask(cluster, views, set())
        assert counting.asked < 12
        told = {id(answer) for answer in answers.values()}
        assert len(told) == 1
        assert all(len(answers[name].configs[name]) > 20 for name in names)  # type: ignore[union-attr]
        assert len(answers[names[0]].logs) == len(answers[names[0]].sizes) == 120  # type: ignore[union-attr]
        # One is deleted meanwhile: the others are described all the same.
        admin.delete_topics(cluster, [names[7]])
        answers = describing.ask(cluster, views, set())
        failed = [name for name, answer in answers.items() if isinstance(answer, ApiError)]
        assert failed == [names[7]]
        admin.delete_topics(cluster, names)


def test_questions_are_no_longer_than_a_request_may_be() -> None:
    assert [len(rows) for rows in in_requests(range(4001))] == [2000, 2000, 1]
    assert list(in_requests([])) == []


@pytest.mark.parametrize("policy", ["compact", "compact,delete", "delete"])
def test_compaction_makes_the_number_of_records_unknown(
    tidelog: Command, topic: str, policy: str
) -> None:
    """``delete`` may have been set on a topic that was compacted before."""
    tidelog("topics", "create", topic, "--config", "cleanup.policy=compact")
    tidelog("produce", topic, "--key-separator", ":", stdin="a:1\na:2\n")
    tidelog("topics", "alter", topic, "--config", f"cleanup.policy={policy}")
    (found,) = tidelog("topics", "describe", topic, "--json").json
    (part,) = found["partitions"]
    assert (part["offsets"], part["records"]) == (2, None)
    shown = tidelog("topics", "describe", topic)
    assert "1 replica, up to 2 records, " in shown.lines[0]
    assert "OFFSETS" in shown.lines[-2]
    assert "RECORDS" not in shown.out


def test_several_topics_where_one_fails(tidelog: Command, topic: str) -> None:
    result = tidelog("topics", "create", topic, "no/slash", "--json")
    assert result.code == 1
    assert [row["created"] for row in result.json] == [True, False]
    assert result.err == (
        "Error: the topic name 'no/slash' holds more than letters, digits, '.', '_' and '-'\n"
    )
    assert tidelog("topics", "create", topic).err == f"Error: topic '{topic}' exists already\n"
    again = tidelog("topics", "create", topic, "--if-not-exists")
    assert (again.code, again.out) == (0, f"{topic} exists already\n")


def test_validate_only_makes_nothing(tidelog: Command, topic: str) -> None:
    assert "could be created: 7 partitions" in (
        tidelog("topics", "create", topic, "--partitions", "7", "--validate-only").out
    )
    assert tidelog("topics", "describe", topic).code == 1


@pytest.mark.parametrize(("name", "warns"), [("a.b", True), ("a_b", True), ("a-b", False)])
def test_names_that_metrics_confuse_are_warned_of(tidelog: Command, name: str, warns: bool) -> None:
    result = tidelog("topics", "create", f"warn-{name}", "--validate-only")
    assert result.code == 0
    assert ("cannot tell '.' from '_'" in result.err) is warns


@pytest.mark.parametrize(
    ("options", "code", "message"),
    [
        (["--partitions", "0"], 2, "0 is not in the range"),
        (["--replication-factor", "3"], 1, "replication factor 3 with 1 broker: use 1 to 1"),
        (["--config", "retention"], 2, "write it as name=value"),
        (["--config", "retenton.ms=1"], 1, "did you mean retention.ms?"),
        (["--config", "retention.ms=soon"], 1, "it must be a whole number"),
        (["--assignment", "0:x"], 2, "write broker numbers"),
        (["--assignment", "5"], 1, "there is no broker 5"),
        (["--assignment", "0", "--partitions", "1"], 2, "leave --partitions"),
    ],
)
def test_bad_topics_are_refused(
    tidelog: Command, topic: str, options: list[str], code: int, message: str
) -> None:
    result = tidelog("topics", "create", topic, *options)
    assert result.code == code
    assert message in result.err
    assert "Traceback" not in result.err


def test_an_assignment_gives_the_number_of_partitions(tidelog: Command, topic: str) -> None:
    result = tidelog("topics", "create", topic, "--assignment", "0,0,0")
    assert result.out == f"{topic} created: 3 partitions, 1 replica\n"


@pytest.mark.parametrize("options", [(), ("--json",)])
def test_what_was_altered_before_a_broker_was_lost_is_shown(
    tidelog: Command, topic: str, options: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [f"{topic}-{letter}" for letter in "abc"]
    tidelog("topics", "create", *names)
    grow = admin.grow_topic

    def lost(cluster: Cluster, name: str, *args: Any, **more: Any) -> None:
        if name == names[1]:
            raise BrokerUnreachable("the broker is gone")
        grow(cluster, name, *args, **more)

    monkeypatch.setattr(admin, "grow_topic", lost)
    altered = tidelog("topics", "alter", *names, "--partitions", "2", *options)
    assert (altered.code, altered.err) == (1, "Error: the broker is gone\n")
    if options:
        assert altered.json == [{"name": names[0], "altered": True, "error": None}]
    else:
        assert altered.out == f"{names[0]} altered\n"


def test_alter(tidelog: Command, topic: str) -> None:
    tidelog("topics", "create", topic, "--config", "retention.ms=5")
    altered = tidelog(
        "topics", "alter", topic, "--partitions", "3", "--config", "segment.bytes=1000",
        "--delete-config", "retention.ms",
    )  # fmt: skip
    assert (altered.code, altered.out) == (0, f"{topic} altered\n")
    (found,) = tidelog("topics", "describe", topic, "--json").json
    assert (len(found["partitions"]), found["config"]) == (3, {"segment.bytes": "1000"})
    fewer = tidelog("topics", "alter", topic, "--partitions", "1")
    assert (fewer.code, fewer.err) == (
        1,
        f"Error: topic '{topic}' has 3 partitions already; it can only grow\n",
    )
    assert tidelog("topics", "alter", topic).code == 2
    assert tidelog("topics", "alter", "never-made", "--partitions", "2").code == 1


def test_a_topic_with_one_partition_has_not_one_partitions(tidelog: Command, topic: str) -> None:
    tidelog("topics", "create", topic)
    refused = tidelog("topics", "alter", topic, "--partitions", "1")
    assert refused.err == f"Error: topic '{topic}' has 1 partition already; it can only grow\n"


def test_json_has_an_object_for_each_topic(tidelog: Command, topic: str) -> None:
    wrong, other = "no/slash", f"{topic}-2"
    created = tidelog("topics", "create", topic, other, wrong, "--json").json
    keys = ["name", "created", "partitions", "replication_factor", "error"]
    assert [list(row) for row in created] == [keys] * 3
    assert [row["error"] is None for row in created] == [True, True, False]
    again = tidelog("topics", "create", topic, "--if-not-exists", "--json").json
    assert again == [dict.fromkeys(keys) | {"name": topic, "created": False}]
    altered = tidelog("topics", "alter", topic, wrong, other, "--partitions", "2", "--json")
    assert altered.code == 1
    assert [(row["name"], row["altered"]) for row in altered.json] == [
        (topic, True),
        (wrong, False),
        (other, True),
    ]
    assert altered.json[1]["error"] in altered.err
    checked = tidelog("topics", "alter", topic, "--partitions", "3", "--validate-only", "--json")
    assert checked.json == [{"name": topic, "altered": False, "error": None}]
    described = tidelog("topics", "describe", topic, other, "--json").json
    assert [(row["name"], len(row["partitions"])) for row in described] == [(topic, 2), (other, 2)]
    deleted = tidelog("topics", "delete", topic, wrong, "--yes", "--json")
    assert deleted.code == 1
    assert [list(row) for row in deleted.json] == [["name", "deleted", "error"]] * 2
    assert [row["deleted"] for row in deleted.json] == [True, False]


def test_nothing_is_deleted_without_a_yes(tidelog: Command, topic: str) -> None:
    tidelog("topics", "create", topic)
    refused = tidelog("topics", "delete", topic)
    assert refused.code == 2
    assert "add --yes" in refused.err
    assert tidelog("topics", "describe", topic).code == 0
    missing = tidelog("topics", "delete", "never-made", "--yes")
    assert (missing.code, missing.err) == (1, "Error: there is no topic 'never-made'\n")
    result = tidelog("topics", "delete", topic, "never-made", "--yes", "--if-exists", "--json")
    assert result.code == 0
    assert {row["name"]: row["deleted"] for row in result.json} == {
        topic: True,
        "never-made": False,
    }


def test_an_unknown_topic_is_named(tidelog: Command, topic: str) -> None:
    tidelog("topics", "create", topic)
    there = tidelog("topics", "describe", "never-made", topic)
    assert there.code == 1
    assert there.lines[0].startswith(topic)
    result = tidelog("topics", "describe", "never-made")
    assert result.code == 1
    assert result.err.startswith("Error: there is no topic 'never-made'; see `tidelog topics list`")


def test_an_empty_broker_says_so() -> None:
    with LocalBroker() as own:
        listed = run("topics", "list", bootstrap=own.bootstrap)
        assert "tidelog topics create NAME" in listed.out
        assert run("topics", "list", "--json", bootstrap=own.bootstrap).json == []
        assert run("topics", "describe", "--json", bootstrap=own.bootstrap).json == []


# -- configs --------------------------------------------------------------------


def test_only_what_is_set_is_shown_unless_all(tidelog: Command, topic: str) -> None:
    tidelog("topics", "create", topic)
    assert "nothing is set" in tidelog("configs", "describe", "--topic", topic).out
    result = tidelog(
        "configs", "alter", "--topic", topic, "--set", "retention.ms=5", "--append",
        "cleanup.policy=compact",
    )  # fmt: skip
    assert (result.code, result.out) == (0, f"topic {topic} altered\n")
    (found,) = tidelog("configs", "describe", "--topic", topic, "--json").json
    assert found["config"] == [
        {"name": n, "value": v, "source": "topic", "type": t, "read_only": False}
        for n, v, t in [("cleanup.policy", "delete,compact", "list"), ("retention.ms", "5", "long")]
    ]
    (everything,) = tidelog("configs", "describe", "--topic", topic, "--all", "--json").json
    assert len(everything["config"]) > 20
    documented = tidelog("configs", "describe", "--topic", topic, "--docs")
    assert "Delete segments older than this" in documented.out
    args = ("--topic", topic, "--delete", "retention.ms", "--subtract", "cleanup.policy=compact")
    assert tidelog("configs", "alter", *args).code == 0
    (found,) = tidelog("configs", "describe", "--topic", topic, "--json").json
    assert [row["value"] for row in found["config"]] == ["delete"]


def test_broker_settings() -> None:
    with LocalBroker({"num.partitions": 3}) as own:

        def call(*args: str):
            return run("configs", *args, bootstrap=own.bootstrap)

        (found,) = call("describe", "--broker", "0", "--json").json
        rows = {row["name"]: row for row in found["config"]}
        assert (rows["num.partitions"]["value"], rows["num.partitions"]["source"]) == (
            "3",
            "server",
        )
        assert rows["num.partitions"]["read_only"]
        assert call("alter", "--all-brokers", "--set", "log.retention.ms=77").code == 0
        assert call("alter", "--broker", "0", "--set", "log.segment.bytes=99999").code == 0
        (found,) = call("describe", "--broker", "0", "--json").json
        sources = {row["name"]: row["source"] for row in found["config"]}
        assert sources["log.retention.ms"] == "all brokers"
        assert sources["log.segment.bytes"] == "broker"
        (found,) = call("describe", "--all-brokers", "--json").json
        assert [row["name"] for row in found["config"]] == ["log.retention.ms"]


def test_settings_of_a_group(tidelog) -> None:
    session = "consumer.session.timeout.ms"
    altered = tidelog("configs", "alter", "--group", "billing", "--set", f"{session}=50000")
    assert altered.out == "group billing altered\n"
    (found,) = tidelog("configs", "describe", "--group", "billing", "--json").json
    (row,) = found["config"]
    assert (row["name"], row["value"], row["source"]) == (session, "50000", "group")


@pytest.mark.parametrize(
    ("args", "code", "message"),
    [
        (["describe"], 2, "say whose settings"),
        (["alter", "--broker", "0"], 2, "say what to change"),
        (["describe", "--broker", "7"], 1, "there is no broker 7"),
        (["describe", "--topic", "never-made"], 1, "there is no topic 'never-made'"),
        (["alter", "--broker", "0", "--set", "num.partitons=2"], 1, "did you mean num.partitions"),
        (["alter", "--broker", "0", "--set", "num.partitions=2"], 1, "cannot be changed while"),
        (["alter", "--broker", "0", "--append", "log.retention.ms=2"], 1, "is not a list"),
    ],
)
def test_bad_settings_are_refused(
    tidelog: Command, args: list[str], code: int, message: str
) -> None:
    result = tidelog("configs", *args)
    assert (result.code, result.out) == (code, "")
    assert message in result.err


def test_settings_can_be_tried_out(tidelog: Command, topic: str) -> None:
    tidelog("topics", "create", topic)
    args = ("configs", "alter", "--topic", topic, "--validate-only", "--set")
    assert tidelog(*args, "retention.ms=5").code == 0
    assert tidelog(*args, "retention.ms=x").code == 1
    (found,) = tidelog("configs", "describe", "--topic", topic, "--json").json
    assert found["config"] == []


# -- records --------------------------------------------------------------------


def test_records_are_deleted_from_the_start(tidelog: Command, topic: str) -> None:
    tidelog("topics", "create", topic, "--partitions", "2")
    tidelog("produce", topic, "--acks", "1", "-p", "0", stdin="0\n1\n2\n3\n4\n")
    tidelog("produce", topic, "--acks", "1", "-p", "1", stdin="0\n")
    plan = tidelog("records", "delete", topic, "--before", "-2")
    assert plan.code == 2
    assert plan.lines[1].split() == ["0", "0", "5", "3", "3"]
    assert plan.lines[2].split() == ["1", "0", "1", "0", "0"]
    assert "add --yes" in plan.err
    done = tidelog("records", "delete", topic, "--before", "-2", "--yes")
    assert (done.code, done.lines[-1]) == (0, "3 records deleted")
    result = tidelog("records", "delete", topic, "-p", "0", "--before", "end", "--yes", "--json")
    (row,) = result.json
    assert (row["records"], row["start"], row["new_start"]) == (2, 3, 5)
    nothing = tidelog("records", "delete", topic, "-p", "0", "--before", "4")
    assert (nothing.code, nothing.lines[-1]) == (0, "there is nothing to delete")


@pytest.mark.parametrize(
    ("args", "code", "message"),
    [
        (["--before", "9"], 2, "9 is past the end"),
        (["--before", "yesterday"], 2, "'yesterday' is not an offset; use start"),
        (["--before", "1:2"], 2, "not one offset"),
        (["--before", "0", "-p", "3"], 1, "has no partition 3; it has only partition 0"),
        ([], 2, "Missing option '--before'"),
    ],
)
def test_bad_deletions_are_refused(
    tidelog: Command, topic: str, args: list[str], code: int, message: str
) -> None:
    tidelog("topics", "create", topic)
    result = tidelog("records", "delete", topic, *args, "--yes")
    assert result.code == code
    assert message in result.err


def test_what_the_broker_refuses_is_told(tidelog: Command, topic: str) -> None:
    tidelog("topics", "create", topic, "--config", "cleanup.policy=compact")
    tidelog("produce", topic, "--acks", "1", "--key", "k", stdin="v\n")
    result = tidelog("records", "delete", topic, "--before", "end", "--yes")
    assert result.code == 1
    assert result.err.startswith(f"Error: {topic}-0: POLICY_VIOLATION")
