"""``tidelog consume --group``: a member of a consumer group."""

from __future__ import annotations

import json
import signal

import pytest
from support.cli import Command, spawn
from support.waiting import until

from tidelog.testing import LocalBroker


@pytest.fixture
def clicks(tidelog: Command, topic: str) -> str:
    """A topic with two partitions and ten records in each."""
    tidelog("topics", "create", topic, "--partitions", "2")
    for partition in ("0", "1"):
        lines = "".join(f"{i}:{partition}-{i}\n" for i in range(10))
        tidelog("produce", topic, "-p", partition, "--key-separator", ":", stdin=lines)
    return topic


def committed(tidelog: Command, group: str) -> list[int]:
    (found,) = tidelog("groups", "describe", group, "--json").json
    return [row["committed"] for row in found["partitions"]]


def test_a_group_goes_on_where_it_stopped(tidelog: Command, clicks: str) -> None:
    member = ("consume", clicks, "--group", clicks, "--exit")
    first = tidelog(*member)
    assert (first.code, first.err) == (0, "20 records\n")
    assert sorted(first.lines) == sorted(f"{p}-{i}" for p in (0, 1) for i in range(10))
    assert committed(tidelog, clicks) == [10, 10]
    assert tidelog(*member).err == "0 records\n"
    tidelog("produce", clicks, "-p", "1", stdin="more\n")
    again = tidelog(*member, "--json")
    assert json.loads(again.out)["value"] == "more"
    assert json.loads(again.out)["offset"] == 10
    kinds = [row["event"] for row in tidelog("groups", "explain", clicks, "--json").json["events"]]
    assert kinds.count("joined") == kinds.count("left") == 3


def test_only_what_was_shown_is_committed(tidelog: Command, clicks: str) -> None:
    some = tidelog("consume", clicks, "--group", clicks, "--from", "start", "-n", "3")
    assert len(some.lines) == 3
    rest = tidelog("consume", clicks, "--group", clicks, "--exit", "-q")
    assert (len(rest.lines), rest.err) == (17, "")
    assert not set(some.lines) & set(rest.lines)


def test_what_was_shown_before_a_bad_record_is_committed(tidelog: Command, topic: str) -> None:
    tidelog("topics", "create", topic, "--partitions", "1")
    tidelog("produce", topic, stdin=b"a\nb\n\xff\nd\n")
    member = ("consume", topic, "--group", topic, "--from", "start", "--exit", "-q")
    stopped = tidelog(*member)
    assert (stopped.code, stopped.lines) == (1, ["a", "b"])
    assert f"{topic}-0@2: " in stopped.err
    assert committed(tidelog, topic) == [2]
    assert tidelog(*member, "--skip-bad").lines == ["d"]


def test_where_to_begin_if_nothing_is_committed(tidelog: Command, clicks: str) -> None:
    end = tidelog("consume", clicks, "--group", clicks, "--from", "end", "--exit")
    assert (end.code, end.out) == (0, "")


def test_sigterm_leaves_the_group(broker: LocalBroker, tidelog: Command, clicks: str) -> None:
    args = ("consume", clicks, "--group", clicks, "--from", "start")
    with spawn(*args, bootstrap=broker.bootstrap) as process:
        assert process.stdout is not None
        for _ in range(20):
            process.stdout.readline()
        process.send_signal(signal.SIGTERM)
        assert process.wait() == 0
    until(lambda: committed(tidelog, clicks) == [10, 10], "the commits")
    (found,) = tidelog("groups", "describe", clicks, "--json").json
    assert found["members"] == []


@pytest.mark.parametrize(
    "options", [("-p", "0"), ("--until", "5"), ("--from", "7"), ("--from", "2:5")]
)
def test_the_group_says_where_to_read(tidelog: Command, topic: str, options: tuple[str]) -> None:
    refused = tidelog("consume", topic, "--group", "g", *options)
    assert (refused.code, "the group knows where it is" in refused.err) == (2, True)


def test_bad_input(tidelog: Command, clicks: str) -> None:
    missing = tidelog("consume", "no-such-topic", "--group", "g", "--exit")
    assert (missing.code, "no-such-topic" in missing.err) == (1, True)
    bad = tidelog("consume", clicks, "--group", "g", "--exit", "--property", "no.such=1")
    assert (bad.code, 'No such configuration property: "no.such"' in bad.err) == (1, True)
