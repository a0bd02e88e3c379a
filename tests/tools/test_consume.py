"""``tidelog consume``: from where to where, and what may happen meanwhile."""

from __future__ import annotations

import json
import os
import signal
import uuid

import pytest
from support.cli import Command, Result, run, spawn

from tidelog.clock import SystemClock
from tidelog.testing import LocalBroker

HOUR = 3_600_000


def fill(bootstrap: str, topic: str) -> None:
    """Records 0 to 9, an hour apart; the newest is half an hour old."""
    newest = SystemClock().now_ms() - HOUR // 2
    lines = [json.dumps({"value": str(i), "timestamp": newest - (9 - i) * HOUR}) for i in range(10)]
    stdin = "\n".join(lines)
    assert (
        run("produce", topic, "--json", "--acks", "1", bootstrap=bootstrap, stdin=stdin).code == 0
    )


@pytest.fixture(scope="module")
def ten(broker: LocalBroker) -> str:
    """A topic with ten records, for tests that only read."""
    name = f"ten-{uuid.uuid4().hex}"
    fill(broker.bootstrap, name)
    return name


def write(tidelog: Command, topic: str, text: str, *options: str) -> None:
    """Some lines.  (librdkafka takes half a second to begin with acks=all.)"""
    result = tidelog("produce", topic, "--acks", "1", "-q", *options, stdin=text + "\n")
    assert result == Result(0, "", "")


def read(tidelog: Command, *args: str) -> list[str]:
    result = tidelog("consume", *args)
    assert result.code == 0, result.err
    return result.lines


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["--from", "start", "--exit"], "0123456789"),
        (["--from-beginning", "-e"], "0123456789"),
        (["--offset", "7", "--exit"], "789"),
        (["--from", "+8", "--exit"], "89"),
        (["--from", "-3", "--exit"], "789"),
        (["--from", "-30", "--exit"], "0123456789"),
        (["--from", "end", "--exit"], ""),
        (["--exit"], "0123456789"),
        (["--from", "2", "--until", "5"], "234"),
        (["--until", "3"], "012"),
        (["--until", "-8"], "01"),
        (["--from", "2:5"], "234"),
        (["--from", "5:2"], ""),
        (["--from", ":"], "0123456789"),
        (["--from", "8:"], "89"),
        (["--from", ":+2"], "01"),
        (["--from", "start", "-n", "4"], "0123"),
        (["--from", "@-2h", "--exit"], "89"),
        (["--from", "@-150m:@-45m"], "89"[:1]),
        (["--until", "@-8h"], "01"),
        (["--from", "@2000-01-01:@-9h"], "0"),
        (["--from", "@-1m", "--exit"], ""),
        (["--from", "start", "--timeout", "1500"], "0123456789"),
        (["--timeout", "0"], ""),
    ],
    ids=" ".join,
)
def test_from_where_to_where(tidelog: Command, ten: str, options: list[str], expected: str) -> None:
    assert "".join(read(tidelog, ten, *options)) == expected


def test_times_with_a_date(tidelog: Command, ten: str) -> None:
    rows = read(tidelog, ten, "--from", "3:6", "--format", "{time}")
    for separator in ("", "Z"):
        first, last = (row[:-1] + separator for row in (rows[0], rows[2]))
        assert read(tidelog, ten, "--from", f"@{first}:@{last}") == ["3", "4"]


def test_partitions(tidelog: Command, topic: str) -> None:
    tidelog("topics", "create", topic, "--partitions", "3")
    for number in range(3):
        write(tidelog, topic, f"p{number}", "-p", str(number))
    assert sorted(read(tidelog, topic, "--exit")) == ["p0", "p1", "p2"]
    assert sorted(read(tidelog, topic, "-p", "0", "-p", "2", "--exit")) == ["p0", "p2"]
    wrong = tidelog("consume", topic, "-p", "3", "--exit")
    assert wrong.code == 1
    assert wrong.err == f"Error: topic '{topic}' has no partition 3; it has partitions 0 to 2\n"


def test_several_topics_and_patterns(tidelog: Command, topic: str) -> None:
    for name in ("aa", "ab", "b"):
        write(tidelog, f"{topic}-{name}", f"{name}")
    assert sorted(read(tidelog, f"{topic}-aa", f"{topic}-b", "--exit")) == ["aa", "b"]
    assert sorted(read(tidelog, "--include", f"{topic}-a.", "--exit")) == ["aa", "ab"]
    both = ("--whitelist", f"{topic}-aa,{topic}-b", "--exit")
    assert sorted(read(tidelog, *both)) == ["aa", "b"]
    some = ("--include", f"{topic}.{{2,9}}", "--exclude", ".*-b")
    assert sorted(read(tidelog, *some, "--exit")) == ["aa", "ab"]
    shown = tidelog("consume", "--include", f"{topic}-b", "--exit", "--format", "{topic}")
    assert shown.lines == [f"{topic}-b"]
    nothing = tidelog("consume", "--include", "no-such-.*", "--exit")
    assert (nothing.code, nothing.err) == (1, "Error: no topic matches --include 'no-such-.*'\n")


@pytest.mark.parametrize(
    ("args", "code", "message"),
    [
        ([], 2, "name topics, or choose them"),
        (["TOPIC", "--include", "x"], 2, "name topics, or choose them"),
        (["--include", "("], 2, "'(' is not a regular expression"),
        (["TOPIC", "--from", "tomorrow"], 2, "'tomorrow' is not an offset; use start, end"),
        (["TOPIC", "--until", "1:2"], 2, "not one offset"),
        (["TOPIC", "--from", "1:2", "--until", "3"], 2, "a range has its own end"),
        (["TOPIC", "--from", "1", "--from-beginning"], 2, "not both"),
        (["TOPIC", "--until", "1", "--exit"], 2, "not both"),
        (["TOPIC", "--json", "--format", "key"], 2, "not both"),
        (["TOPIC", "--format", "{nope}"], 2, "{nope} is no part of a record; use topic"),
        (["TOPIC", "--format", "nope"], 2, "'nope' is not a format; use value"),
        (["TOPIC", "--property", "group.id=x"], 2, "this command takes fetch.min.bytes"),
        (["TOPIC", "--property", "fetch.min.bytes=x"], 2, "must be a whole number"),
        (["TOPIC", "--until", "@2999-01-01"], 2, "--until a time to come"),
        (["TOPIC", "--from", "99"], 1, "has offsets 0 to 0: there is no 99"),
        (["never-made"], 1, "there is no topic 'never-made'"),
    ],
)
def test_wrong_options(
    tidelog: Command, topic: str, args: list[str], code: int, message: str
) -> None:
    if "TOPIC" in args:
        write(tidelog, topic, "v")
    result = tidelog("consume", *(topic if arg == "TOPIC" else arg for arg in args))
    assert (result.code, result.out) == (code, "")
    assert message in result.err
    assert "Traceback" not in result.err


def test_properties_of_a_fetch(tidelog: Command, ten: str) -> None:
    small = ("--property", "max.partition.fetch.bytes=1", "--property", "fetch.max.wait.ms=5")
    assert "".join(read(tidelog, ten, "--exit", *small)) == "0123456789"


def test_what_cannot_be_shown_stops_or_is_skipped(tidelog: Command, topic: str) -> None:
    lines = '{"value": "a"}\n{"value": {"base64": "/w=="}}\n{"value": "c"}\n'
    tidelog("produce", topic, "--json", "--acks", "1", stdin=lines)
    stopped = tidelog("consume", topic, "--exit")
    assert (stopped.code, stopped.out) == (1, "a\n")
    assert stopped.err.splitlines()[0] == "1 record"
    assert f"Error: {topic}-0@1: the value is not UTF-8 text" in stopped.err
    skipped = tidelog("consume", topic, "--exit", "--skip-bad")
    assert (skipped.code, skipped.out, skipped.err) == (0, "a\nc\n", "2 records, 1 skipped\n")
    assert read(tidelog, topic, "--exit", "--encoding", "hex") == ["61", "ff", "63"]
    assert tidelog("consume", topic, "--exit", "--encoding", "base64", "-q").err == ""


@pytest.mark.parametrize("name", ["utf-8", "utf8", "text", "UTF8"])
def test_text_has_several_names(tidelog: Command, topic: str, name: str) -> None:
    write(tidelog, topic, "flut")
    assert read(tidelog, topic, "--exit", "--encoding", name) == ["flut"]


def test_a_damaged_batch_stops_or_is_skipped(tidelog: Command, broker, topic: str) -> None:
    for line in ("good", "damaged", "also good"):
        write(tidelog, topic, line)
    path = broker.data / f"{topic}-0" / f"{0:020d}.log"
    content = bytearray(path.read_bytes())
    content[content.index(b"damaged")] ^= 1
    with open(path, "r+b") as file:
        file.write(content)
    stopped = tidelog("consume", topic, "--exit")
    assert (stopped.code, stopped.out) == (1, "good\n")
    assert f"{topic}-0@1: the batch cannot be decoded: the batch does not match its CRC" in (
        stopped.err
    )
    assert read(tidelog, topic, "--exit", "--skip-bad") == ["good", "also good"]


# -- what may happen while it runs ----------------------------------------------


class Consumer:
    """``tidelog consume`` as a process of its own, with its lines as they come."""

    def __init__(self, *args: str, bootstrap: str) -> None:
        self.process = spawn("consume", *args, bootstrap=bootstrap)
        assert self.process.stdout is not None
        self.out = self.process.stdout

    def lines(self, count: int) -> list[str]:
        return [self.out.readline().rstrip("\n") for _ in range(count)]

    def stop(self, number: signal.Signals = signal.SIGINT) -> Result:
        """Ctrl-C, and what it said."""
        self.process.send_signal(number)
        return self.end()

    def end(self) -> Result:
        assert self.process.stderr is not None
        out, err = self.out.read(), self.process.stderr.read()  # they may hold some already
        return Result(self.process.wait(100), out, err)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_new_records_come_at_once_and_ctrl_c_is_no_error(
    tidelog: Command, broker, topic: str, number: signal.Signals
) -> None:
    fill(broker.bootstrap, topic)
    consumer = Consumer(topic, "--from", "-1", bootstrap=broker.bootstrap)
    assert consumer.lines(1) == ["9"]
    write(tidelog, topic, "10")
    assert consumer.lines(1) == ["10"]
    assert consumer.stop(number) == Result(0, "", "2 records\n")


def test_a_restart_is_waited_for() -> None:
    with LocalBroker() as own:
        run("produce", "t", "--acks", "1", bootstrap=own.bootstrap, stdin="before\n")
        consumer = Consumer("t", "--from", "start", bootstrap=own.bootstrap)
        assert consumer.lines(1) == ["before"]
        own.kill()
        assert consumer.process.stderr is not None
        assert "; trying again for 60 seconds" in consumer.process.stderr.readline()
        own.start()
        run("produce", "t", "--acks", "1", bootstrap=own.bootstrap, stdin="after\n")
        assert consumer.lines(1) == ["after"]
        result = consumer.stop()
        assert result == Result(0, "", "the broker is back; going on\n2 records\n")


def test_a_broker_that_stays_away_is_an_error() -> None:
    with LocalBroker() as own:
        run("produce", "t", "--acks", "1", bootstrap=own.bootstrap, stdin="before\n")
        consumer = Consumer("t", "--from", "start", "--retry", "0.1", bootstrap=own.bootstrap)
        assert consumer.lines(1) == ["before"]
        own.kill()
        result = consumer.end()
        assert result.code == 1
        assert result.err.splitlines()[-1].endswith("gave up after 0.1 seconds")


def test_a_topic_that_is_deleted_is_told(tidelog: Command, broker, topic: str) -> None:
    fill(broker.bootstrap, topic)
    consumer = Consumer(topic, "--from", "-1", bootstrap=broker.bootstrap)
    assert consumer.lines(1) == ["9"]
    tidelog("topics", "delete", topic, "--yes")
    result = consumer.end()
    assert result.code == 1
    assert result.err == f"1 record\nError: topic '{topic}' was deleted while it was read\n"


def test_records_that_are_deleted_before_they_are_read_are_told(
    tidelog: Command, broker, topic: str
) -> None:
    # Ten segments of a record each: a batch is not given up by halves.
    tidelog("topics", "create", topic, "--config", "segment.bytes=1000")
    lines = f"{'x' * 800}\n" * 10
    tidelog("produce", topic, "--batch-size", "1", stdin=lines)
    consumer = Consumer(
        topic, "--from", "start", "--property", "max.partition.fetch.bytes=1", "--format",
        "{offset} {value}", bootstrap=broker.bootstrap,
    )  # fmt: skip
    # It has read some, and one fetch is under way.
    assert consumer.lines(1)[0].startswith("0 ")
    tidelog("records", "delete", topic, "--before", "end", "--yes")
    write(tidelog, topic, "new")
    offsets = []
    while not offsets or offsets[-1] != "10 new":
        offsets += [line.replace("x" * 800, "") for line in consumer.lines(1)]
    result = consumer.stop()
    assert result.code == 0
    if len(offsets) < 10:  # it was not faster than the deletion
        assert "were deleted before they were read" in result.err


def test_a_pattern_waits_for_topics_and_finds_new_partitions(
    tidelog: Command, broker, topic: str
) -> None:
    consumer = Consumer("--include", f"{topic}.*", "-n", "3", bootstrap=broker.bootstrap)
    assert consumer.process.stderr is not None
    assert "no topic matches" in consumer.process.stderr.readline()
    write(tidelog, topic, "first")
    assert consumer.lines(1) == ["first"]
    tidelog("topics", "alter", topic, "--partitions", "2")
    write(tidelog, topic, "second", "-p", "1")
    write(tidelog, f"{topic}-new", "third")
    assert sorted(consumer.lines(2)) == ["second", "third"]
    assert consumer.end() == Result(0, "", "3 records\n")


def test_output_is_whole_lines_however_it_is_stopped(tidelog: Command, broker, topic: str) -> None:
    write(tidelog, topic, "\n".join(f"{i:0100}" for i in range(100_000)))
    consumer = Consumer(topic, "--from", "start", bootstrap=broker.bootstrap)
    assert consumer.lines(1) == [f"{0:0100}"]
    result = consumer.stop()
    assert result.code == 0
    rows = result.out.split("\n")
    assert rows[-1] == ""
    assert [int(row) for row in rows[:-1]] == list(range(1, len(rows)))
    assert result.err == f"{len(rows):,} records\n"


def test_a_full_disk_behind_the_output_is_an_error(tidelog: Command, broker, ten: str) -> None:
    if not os.path.exists("/dev/full"):
        pytest.skip("there is no /dev/full")
    with open("/dev/full", "wb") as full:
        process = spawn("consume", ten, "--exit", bootstrap=broker.bootstrap, stdout=full)
        _, err = process.communicate(timeout=100)
    assert process.returncode == 1
    assert "No space left on device" in err
    assert "Traceback" not in err
