"""What every command has in common: help, errors in one sentence, quiet ends."""

from __future__ import annotations

import json
import os
import pty
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from support.cli import Command, run, spawn

from tidelog.testing import LocalBroker
from tidelog.tools.main import COMMANDS

NEED_A_BROKER = [
    ("topics", "list"),
    ("topics", "create", "x"),
    ("topics", "describe"),
    ("topics", "alter", "x", "--partitions", "2"),
    ("topics", "delete", "x", "--yes"),
    ("produce", "x"),
    ("consume", "x"),
    ("configs", "describe", "--topic", "x"),
    ("configs", "alter", "--topic", "x", "--set", "a=b"),
    ("records", "delete", "x", "--before", "end", "--yes"),
]


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_helps(command: str) -> None:
    result = run(command, "--help")
    assert result.code == 0
    assert result.out.startswith(f"Usage: tidelog {command}")


@pytest.mark.parametrize("args", NEED_A_BROKER, ids=" ".join)
def test_without_a_broker_one_sentence_says_what_to_do(args: tuple[str, ...]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = f"127.0.0.1:{listener.getsockname()[1]}"
    result = run(*args, "-b", address)
    assert result.code == 1
    assert result.out == ""
    assert result.err == (
        f"Error: cannot reach a broker at {address}: connection refused; "
        "start one with `tidelog up`, or name another with -b\n"
    )


@pytest.mark.parametrize("args", NEED_A_BROKER, ids=" ".join)
def test_every_command_that_talks_to_a_broker_takes_b_and_the_environment(
    args: tuple[str, ...],
) -> None:
    assert (
        "TIDELOG_BOOTSTRAP" in run(*args[: 1 if args[0] in ("produce", "consume") else 2], "-h").out
    )


@pytest.mark.parametrize(
    ("args", "told"),
    [
        ("topic list", "No such command 'topic'. Did you mean 'topics'?"),
        ("Consume x", "No such command 'Consume'. Did you mean 'consume'?"),
        ("topics lst", "No such command 'lst'. Did you mean 'list'?"),
        ("groups xyz", "No such command 'xyz'. There are delete, describe, explain, list, reset."),
    ],
)
def test_a_wrong_command_names_the_nearest(args: str, told: str) -> None:
    result = run(*args.split())
    assert (result.code, result.out) == (2, "")
    assert result.err.splitlines()[-1] == f"Error: {told}"


def test_a_bad_address_is_refused() -> None:
    result = run("topics", "list", "-b", "localhost:many")
    assert (result.code, result.err) == (
        1,
        "Error: bootstrap: 'localhost:many' is not an address; write host:port\n",
    )


def test_the_environment_names_the_broker(tidelog: Command) -> None:
    assert tidelog("topics", "list").code == 0


def test_a_reader_that_has_seen_enough_is_no_error(broker: LocalBroker, topic: str) -> None:
    lines = "".join(f"{i}\n" for i in range(50_000))
    assert run("produce", topic, "-q", bootstrap=broker.bootstrap, stdin=lines).code == 0
    process = spawn("consume", topic, "--from", "start", bootstrap=broker.bootstrap)
    assert process.stdout is not None
    assert process.stdout.readline() == "0\n"
    process.stdout.close()
    _, error = process.communicate(timeout=100)
    assert (process.returncode, error) == (0, "")


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_an_interrupted_command_leaves_no_traceback(
    broker: LocalBroker, topic: str, number: signal.Signals, code: int
) -> None:
    process = spawn("produce", topic, bootstrap=broker.bootstrap)
    assert process.stdin is not None
    process.stdin.write("one\n")
    process.stdin.flush()
    consumer = spawn("consume", topic, "--from", "start", "-n", "1", bootstrap=broker.bootstrap)
    # It may be a moment until the producer has made the topic.
    while consumer.wait(100) != 0:
        consumer = spawn("consume", topic, "--from", "start", "-n", "1", bootstrap=broker.bootstrap)
    process.send_signal(number)
    _, error = process.communicate(timeout=100)
    assert process.returncode == code
    assert error == f"1 record to {topic}: 1 to partition 0\n"


def on_a_terminal(*args: str, bootstrap: str, typed: str) -> tuple[int, str]:
    """Run a command on a pseudo terminal, type, and return what was on the screen."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "tidelog", *args],
        env={**os.environ, "TIDELOG_BOOTSTRAP": bootstrap, "TERM": "xterm", "COLUMNS": "120"},
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        start_new_session=True,
    )
    os.close(theirs)
    os.write(ours, typed.encode())
    screen = b""
    while True:
        try:
            data = os.read(ours, 4096)
        except OSError:  # the other end is closed
            break
        if not data:
            break
        screen += data
    os.close(ours)
    return process.wait(100), screen.decode()


def test_a_person_is_asked_before_something_is_lost(tidelog: Command, broker, topic: str) -> None:
    tidelog("topics", "create", topic)
    where = broker.bootstrap
    code, screen = on_a_terminal("topics", "delete", topic, bootstrap=where, typed="n\n")
    assert code == 1
    assert "nothing was changed" in screen
    assert f"Delete {topic} with all records?" in screen
    assert tidelog("topics", "describe", topic).code == 0
    code, screen = on_a_terminal("topics", "delete", topic, bootstrap=where, typed="y\n")
    assert code == 0
    assert f"{topic} deleted" in screen


def test_a_person_gets_tables_and_a_prompt(tidelog: Command, broker, topic: str) -> None:
    code, screen = on_a_terminal("produce", topic, bootstrap=broker.bootstrap, typed="hi\n\x04")
    assert code == 0
    assert screen.count(">") == 2
    assert f"1 record to {topic}" in screen
    code, screen = on_a_terminal("topics", "list", bootstrap=broker.bootstrap, typed="")
    assert code == 0
    assert "━" in screen or "─" in screen
    assert topic in screen


def test_verbose_says_which_client_does_what(tmp_path: Path) -> None:
    log = tmp_path / "log"
    with log.open("w") as errors:
        command = ("up", "-v", "--json", "--port", "0", "--data", str(tmp_path / "data"))
        broker = spawn(*command, bootstrap="", stderr=errors)
        try:
            assert broker.stdout is not None
            address = json.loads(broker.stdout.readline())["bootstrap"]
            for _ in range(3):
                assert run("produce", "tides", bootstrap=address, stdin="high\nlow\n").code == 0
            run("consume", "tides", "--exit", bootstrap=address)
        finally:
            broker.terminate()
            assert broker.wait(100) == 0
    text = log.read_text()
    assert "Traceback" not in text
    assert re.search(r"DEBUG \S+: connected\n", text)
    assert re.search(r"DEBUG \S+: disconnected\n", text)
    assert re.search(r"DEBUG \S+ \(tidelog-produce\): ApiVersions v\d+: \S+ \S*rdkafka\S*\n", text)
    assert len(re.findall(r"DEBUG \S+ \(tidelog-produce\): Produce v\d+: tides\n", text)) == 3
    assert re.search(r"DEBUG \S+ \(\S+\): Fetch v\d+: tides\n", text)
