"""``tidelog produce`` and ``tidelog consume``: everything in, everything out."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest
from support.cli import Command, Result, run, spawn

from tidelog.testing import LocalBroker
from tidelog.tools import produce as producing
from tidelog.views import in_sync
from tidelog.wire.batch import read_header
from tidelog.wire.records import split_batches


def everything(tidelog: Command, topic: str, *options: str) -> Result:
    return tidelog("consume", topic, "--from", "start", "--exit", *options)


def test_lines_become_records(tidelog: Command, topic: str) -> None:
    result = tidelog("produce", topic, stdin="one\n\ntwo")
    assert (result.code, result.out) == (0, "")
    assert result.err == f"3 records to {topic}: 3 to partition 0\n"
    consumed = everything(tidelog, topic)
    assert (consumed.code, consumed.out, consumed.err) == (0, "one\n\ntwo\n", "3 records\n")


def test_with_acks_all_no_record_is_written_twice(
    tidelog: Command, broker: LocalBroker, topic: str
) -> None:
    for acks in ("1", "-1", "all"):
        assert tidelog("produce", topic, "--acks", acks, stdin="x\n").code == 0
    assert tidelog("produce", topic, stdin="x\n").code == 0
    data = (broker.data / f"{topic}-0" / f"{0:020d}.log").read_bytes()
    idempotent = [read_header(batch).producer_id >= 0 for batch in split_batches(data)]
    assert idempotent == [False, True, True, True]


def test_keys_headers_and_nulls(tidelog: Command, topic: str) -> None:
    tidelog("topics", "create", topic, "--partitions", "3")
    lines = "a=1\tk1\tv1\n\tk2\tNIL\nb=NIL\tNIL\tv3\n"
    result = tidelog(
        "produce", topic, "--acks", "1", "--headers-separator", r"\t", "--key-separator", r"\t",
        "--null", "NIL", "-H", "all=yes", stdin=lines,
    )  # fmt: skip
    assert result.code == 0
    rows = [json.loads(line) for line in everything(tidelog, topic, "--json").lines]
    found = {(row["key"], row["value"], json.dumps(row["headers"])) for row in rows}
    assert found == {
        ("k1", "v1", '[["all", "yes"], ["a", "1"]]'),
        ("k2", None, '[["all", "yes"]]'),
        (None, "v3", '[["all", "yes"], ["b", null]]'),
    }


def test_a_file_a_partition_and_a_fixed_key(tidelog: Command, topic: str, tmp_path) -> None:
    tidelog("topics", "create", topic, "--partitions", "3")
    path = tmp_path / "lines"
    path.write_text("1\n2\n")
    result = tidelog("produce", topic, "--file", str(path), "-k", "K", "-p", "2", "--acks", "1")
    assert result.err == f"2 records to {topic}: 2 to partition 2\n"
    shown = everything(tidelog, topic, "--format", "{partition} {key} {value}")
    assert shown.out == "2 K 1\n2 K 2\n"


@pytest.mark.parametrize("codec", ["gzip", "snappy", "lz4", "zstd"])
def test_codecs(tidelog: Command, broker: LocalBroker, topic: str, codec: str) -> None:
    lines = "".join(f"the same words again and again {i}\n" for i in range(500))
    assert (
        tidelog("produce", topic, "-z", codec, "--acks", "1", "--timeout", "200", stdin=lines).code
        == 0
    )
    assert everything(tidelog, topic).out == lines
    dumped = run("log", "dump", str(broker.data / f"{topic}-0" / f"{0:020d}.log"), "--json")
    # librdkafka leaves a batch alone that compression would not shrink.
    assert codec in {json.loads(line)["codec"] for line in dumped.lines}


def test_batches_and_one_by_one(tidelog: Command, broker: LocalBroker, topic: str) -> None:
    log = str(broker.data / f"{topic}-0" / f"{0:020d}.log")
    options = ("--batch-size", "2", "--timeout", "60000", "--acks", "1")
    assert tidelog("produce", topic, *options, stdin="1\n2\n3\n4\n").code == 0
    counts = [
        json.loads(line)["records_counted"] for line in run("log", "dump", log, "--json").lines
    ]
    assert counts == [2, 2]
    assert tidelog("produce", topic, "--sync", stdin="5\n6\n").code == 0
    assert len(run("log", "dump", log, "--json").lines) == 4


def test_json_round_trip(tidelog: Command, topic: str) -> None:
    tidelog("topics", "create", topic, f"{topic}-copy", "--partitions", "2")
    rows = [
        {"key": "k", "value": "v", "partition": 1, "timestamp": 1_790_000_000_000},
        {"key": {"base64": "/w=="}, "value": None, "headers": [["h", {"base64": "/w=="}]]},
        {"value": {"hex": "00ff"}, "partition": 0, "headers": {"a": "1"}},
    ]
    lines = "".join(json.dumps(row) + "\n" for row in rows)
    result = tidelog("produce", topic, "--json", "--acks", "1", stdin=lines)
    assert result.code == 0
    assert (result.json["records"], result.json["failed"]) == (3, 0)
    first = everything(tidelog, topic, "--json")
    copied = tidelog("produce", f"{topic}-copy", "--json", "--acks", "1", "-q", stdin=first.out)
    assert (copied.code, copied.out, copied.err) == (0, "", "")
    second = everything(tidelog, f"{topic}-copy", "--json")

    def strip(text: str) -> set[str]:
        return {json.dumps({**json.loads(line), "topic": ""}) for line in text.splitlines()}

    assert strip(first.out) == strip(second.out)
    assert first.err == "3 records\n"


def test_partitions_of_json_lines_can_be_ignored(tidelog: Command, topic: str) -> None:
    lines = '{"value": "v", "partition": 5}\n'
    result = tidelog("produce", topic, "--json", "--acks", "1", stdin=lines)
    assert result.code == 1
    assert "there is no partition 5; --repartition ignores it" in result.err
    assert (
        tidelog("produce", topic, "--json", "--acks", "1", "--repartition", stdin=lines).code == 0
    )


def test_a_bad_line_stops_and_what_was_sent_is_told(tidelog: Command, topic: str) -> None:
    result = tidelog("produce", topic, "--key-separator", ":", stdin="a:1\nb\nc:3\n")
    assert result.code == 1
    assert result.err == (
        "Error: line 2: there is no ':' after the key. "
        "Stopped there: line 1 was sent, nothing after it\n"
        f"1 record to {topic}: 1 to partition 0\n"
    )


@pytest.mark.parametrize(
    ("before", "told"),
    [
        (0, "nothing was sent"),
        (1, "line 1 was sent, nothing after it"),
        (3, "lines 1 to 3 were sent, nothing after them"),
    ],
)
def test_an_empty_line_is_no_json(tidelog: Command, topic: str, before: int, told: str) -> None:
    lines = '{"value": "v"}\n' * before + "\n" + '{"value": "v"}\n'
    result = tidelog("produce", topic, "--json", "--acks", "1", stdin=lines)
    assert result.code == 1
    assert result.err.startswith(f"Error: line {before + 1}: it is empty; with --json every line")
    assert result.err.endswith(f"Stopped there: {told}\n")
    assert (result.json["records"], result.json["stopped_at_line"]) == (before, before + 1)


def test_without_json_an_empty_line_is_an_empty_value(tidelog: Command, topic: str) -> None:
    assert tidelog("produce", topic, "--acks", "1", stdin="\n").code == 0
    assert everything(tidelog, topic).out == "\n"


def test_what_the_broker_refuses_is_named_and_counted(tidelog: Command, topic: str) -> None:
    tidelog("topics", "create", topic, "--config", "max.message.bytes=200")
    lines = f"{'x' * 1000}\n" * 2
    result = tidelog("produce", topic, "--batch-size", "1", stdin=lines)
    assert result.code == 1
    assert result.err.startswith("Error: 2 records not written: MSG_SIZE_TOO_LARGE")
    assert "--set max.message.bytes=BYTES" in result.err


@pytest.mark.parametrize(
    ("args", "code", "message"),
    [
        (["--key", "k", "--key-separator", ":"], 2, "not both"),
        (["--json", "--key-separator", ":"], 2, "--json lines carry keys"),
        (["--key-separator", ""], 2, "it is empty"),
        (["-H", "name"], 2, "write it as name=value"),
        (["--acks", "2"], 2, "is not one of"),
        (["-z", "brotli"], 2, "is not one of"),
        (["--file", "/no/such/file"], 2, "No such file"),
        (["--property", "no.such=1"], 1, 'No such configuration property: "no.such"'),
        (["--property", "linger.ms=soon"], 1, "Invalid value"),
        (["-p", "4"], 1, "so there is no partition 4"),
    ],
)
def test_wrong_options(
    tidelog: Command, topic: str, args: list[str], code: int, message: str
) -> None:
    result = tidelog("produce", topic, *args, stdin="v\n")
    assert result.code == code
    assert message in result.err
    assert "Traceback" not in result.err


def test_a_partition_that_is_not_there_is_refused_before_the_first_line(
    tidelog: Command, topic: str
) -> None:
    refused = tidelog("produce", topic, "-p", "99")
    problem = f"topic '{topic}' has 1 partition, so there is no partition 99"
    assert (refused.code, refused.err) == (1, f"Error: {problem}\n")


def test_topics_that_cannot_be(strict_broker: LocalBroker, topic: str) -> None:
    where = strict_broker.bootstrap
    missing = run("produce", topic, bootstrap=where, stdin="v\n")
    assert missing.code == 1
    assert missing.err.startswith(f"Error: there is no topic '{topic}'; see `tidelog topics list`")
    bad = run("produce", "no/slash", bootstrap=where, stdin="v\n")
    assert bad.code == 1
    assert "'no/slash'" in bad.err


def test_a_broker_that_goes_away_is_told_once_and_the_records_are_counted() -> None:
    with LocalBroker() as own:
        process = spawn(
            # Long enough for the first record on a busy machine; the second waits it out.
            "produce",
            "t",
            "--property",
            "message.timeout.ms=6000",
            bootstrap=own.bootstrap,
        )
        assert process.stdin is not None
        assert process.stderr is not None
        process.stdin.write("one\n")
        process.stdin.flush()
        # The topic is there as soon as the producer has looked; the record a moment later.
        look = ("consume", "t", "--from", "start", "-n", "1", "--timeout", "30000")
        while run(*look, bootstrap=own.bootstrap).code:
            pass
        own.kill()
        process.stdin.write("two\n")
        _, error = process.communicate(timeout=100)
    assert process.returncode == 1
    lines = error.splitlines()
    assert lines[-1] == "Error: 1 record not written: Message timed out"
    assert lines[-2] == "1 record to t: 1 to partition 0"
    assert len(lines) <= 3, lines


def test_fewer_replicas_than_must_be_in_sync(tidelog: Command, topic: str) -> None:
    """As in Kafka, all that there are is enough."""
    made = tidelog("topics", "create", topic, "--config", "min.insync.replicas=2")
    assert (made.code, made.err) == (0, "")
    assert tidelog("produce", topic, stdin="x\n").code == 0


def test_why_records_are_not_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(in_sync, "_minimum", lambda *_: 2)

    def why(replicas: list[int], isr: list[int], acks: str = "all") -> str:
        part = SimpleNamespace(index=0, leader=1, replicas=replicas, isr=isr)
        view = SimpleNamespace(topics={"t": SimpleNamespace(partitions=[part])})
        cluster: Any = SimpleNamespace(metadata=lambda _: view)
        return in_sync.why_not_written(cluster, "t", acks)

    few = "NOT_ENOUGH_REPLICAS: 1 replica in sync, and min.insync.replicas=2"
    assert why([1, 2, 3], [1]) == few
    assert why([1, 2, 3], [1], "1") == why([1, 2, 3], [1, 2]) == why([1], [1]) == ""


def test_a_wait_for_acknowledgements_is_explained(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """librdkafka is silent while too few replicas are in sync."""
    monkeypatch.setattr(producing, "_SILENT_SECONDS", 0)
    reason = "NOT_ENOUGH_REPLICAS: 1 replica in sync, and min.insync.replicas=2"
    monkeypatch.setattr(producing._Sender, "_why", lambda _: f" ({reason})")
    left = iter([3, 3, 3, 3, 0])
    sender = producing._Sender("t", {"message.timeout.ms": 30_000}, sync=False)
    sender._producer = SimpleNamespace(flush=lambda _: next(left))  # type: ignore[assignment]
    sender.finish()
    assert capsys.readouterr().err == (
        f"3 records not acknowledged yet ({reason}); trying again for 30 seconds\n"
    )


def test_a_compacted_topic_wants_keys(tidelog: Command, topic: str) -> None:
    tidelog("topics", "create", topic, "--config", "cleanup.policy=compact")
    result = tidelog("produce", topic, stdin="no key\n")
    assert result.code == 1
    assert result.err.startswith("Error: 1 record not written: INVALID_RECORD")
    assert "only records with a key (-k, --key-separator)" in result.err
