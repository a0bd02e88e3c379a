"""``tidelog cluster``: three brokers on this machine, killed and started again."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.cli import run, spawn
from support.waiting import until

from tidelog.testing.ports import free_port
from tidelog.testing.process import is_running, wait_gone
from tidelog.tools.cluster_folder import BrokerEntry, ClusterFolder, locked

pytestmark = pytest.mark.timeout(600)  # each waits for several things in turn


@pytest.fixture
def data(tmp_path: Path) -> Iterator[Path]:
    path = tmp_path / "tidelog-cluster"
    yield path
    run("cluster", "down", "--data", str(path))


def ports() -> list[str]:
    return ["--port", str(free_port(4)), "--zookeeper-port", str(free_port())]


def everybody_knows(bootstrap: str, topic: str) -> None:
    """Each question may go to another broker: they hear of a new topic one after the other."""
    for one in bootstrap.split(","):
        until(
            lambda one=one: run("topics", "describe", topic, bootstrap=one).code == 0,
            f"{one} knows {topic}",
        )


def test_from_up_to_down(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = run("cluster", "up", "--brokers", "3", "--data", str(data), "--json", *ports())
    assert made.code == 0, made.err
    bootstrap = made.json["bootstrap"]
    assert [row["id"] for row in made.json["brokers"]] == [1, 2, 3]

    def status() -> Any:
        return run("cluster", "status", "--data", str(data), "--json").json

    until(lambda: status()["controller"] in (1, 2, 3), "there is a controller")
    created = run("topics", "create", "t", "--partitions", "6", bootstrap=bootstrap)
    assert created.code == 0, created.err
    sent = run("produce", "t", bootstrap=bootstrap, stdin="a\nb\nc\n")
    assert sent.code == 0, sent.err

    killed = run("cluster", "kill", "1", "--data", str(data))
    assert killed.code == 0, killed.err
    assert [row["running"] for row in status()["brokers"]] == [False, True, True]
    text = run("cluster", "status", "--data", str(data)).out
    assert "down" in text
    assert run("cluster", "kill", "1", "--data", str(data)).err.endswith("is not running\n")

    def described() -> Any:
        return run("cluster", "describe", "--json", bootstrap=bootstrap).json

    def noticed() -> bool:  # by all: each question may go to another broker
        facts = described()
        counts = len(facts["brokers"]), facts["under_replicated"] >= 6, facts["offline"]
        return counts == (2, True, 0)

    until(noticed, "the dead one is noticed")
    assert described()["down"] == [1]
    down = run("cluster", "describe", bootstrap=bootstrap).err
    assert "broker 1 is down: it has replicas, and is not registered" in down
    monkeypatch.chdir(data.parent)
    assert "t" in run("topics", "list").out, "in this folder there is no need to name the brokers"
    plan = run("topics", "reassign", "t", "--plan")
    assert "broker 1 is down: a plan takes away all that it has; start it first" in plan.err

    started = run("cluster", "start", "1")
    assert started.code == 0, started.err
    until(lambda: described()["under_replicated"] == 0, "all are in sync")
    assert "3 brokers" in run("cluster", "describe", bootstrap=bootstrap).out
    preferred_leaders_come_back(data, bootstrap)
    a_fourth_broker(data, bootstrap)

    down = run("cluster", "down", "--data", str(data))
    assert down.code == 0, down.err
    asked, _, _ = bootstrap.partition(",")
    assert not any(row["running"] for row in status()["brokers"])
    assert "start one with `tidelog cluster up`, or" in run("topics", "list", bootstrap=asked).err
    again = run("cluster", "up", "--data", str(data), "--json")
    assert again.code == 0, again.err
    assert again.json["bootstrap"].startswith(bootstrap)
    read = run("consume", "t", "-n", "3", "--from", "start", bootstrap=bootstrap)
    assert sorted(read.lines) == ["a", "b", "c"], read
    zookeeper_and_a_leader_die(data)


def zookeeper_and_a_leader_die(data: Path) -> None:
    """Nobody decides who leads now: the others go on to name the dead one."""
    status = run("cluster", "status", "--data", str(data), "--json").json
    asked = status["brokers"][3]["address"]  # it has no replica of the topic

    def partitions() -> list[Any]:
        found = run("topics", "describe", "t", "--json", bootstrap=asked)
        return found.json[0]["partitions"] if found.code == 0 else []

    def settled() -> bool:
        rows = partitions()
        return bool(rows) and all(row["leader"] > 0 and len(row["isr"]) == 3 for row in rows)

    until(settled, "all are in sync, and leaders stay")
    os.kill(status["zookeeper"]["pid"], signal.SIGKILL)
    wait_gone(status["zookeeper"]["pid"])
    dead = partitions()[0]["leader"]
    killed = run("cluster", "kill", str(dead), "--data", str(data))
    assert killed.code == 0, killed.err
    assert "`tidelog cluster up` brings it back, and ZooKeeper" in killed.out
    described = run("topics", "describe", "t", bootstrap=asked)
    assert described.code == 0, described.err
    (row,) = (line.split() for line in described.lines if line.startswith("          0"))
    assert (row[1], row[4:]) == (str(dead), ["?"] * 4), described.out
    assert f"broker {dead} does not answer: offsets and sizes" in described.err
    (first, *_) = partitions()
    assert (first["leader"], first["end"], first["bytes"]) == (dead, None, None)
    brokers = run("cluster", "describe", bootstrap=asked)
    assert f"broker {dead} does not answer: what is shown of it is old" in brokers.err
    told = run("cluster", "describe", "--json", bootstrap=asked).json["brokers"]
    (old,) = (row for row in told if row["id"] == dead)
    assert (old["bytes"], old["answers"]) == (None, False)
    shown = run("cluster", "status", "--data", str(data)).lines[0]
    assert shown.endswith("is down; `tidelog cluster up` starts what is down")
    failed = run("cluster", "start", str(dead), "--data", str(data))
    assert (failed.code, "`tidelog cluster up` starts it" in failed.err) == (1, True)
    up = run("cluster", "up", "--data", str(data), "--json")
    assert up.code == 0, up.err
    assert all(row["running"] for row in (up.json["zookeeper"], *up.json["brokers"]))


def preferred_leaders_come_back(data: Path, bootstrap: str) -> None:
    def led() -> bool:
        (topic,) = run("topics", "describe", "t", "--json", bootstrap=bootstrap).json
        return all(row["replicas"][0] == row["leader"] for row in topic["partitions"])

    stopped = run("cluster", "stop", "1", "--data", str(data))
    assert stopped.code == 0, stopped.err
    assert "is stopped" in stopped.out

    def refused() -> bool:
        down = run("topics", "elect", "t", bootstrap=bootstrap)
        once = r"Error: 2 partitions \(t-\d, t-\d\): broker 1 is down or not in sync\n"
        return down.code == 1 and re.fullmatch(once, down.err) is not None

    until(refused, "others lead, and the preferred leader cannot")
    assert run("cluster", "start", "1", "--data", str(data)).code == 0

    def elected() -> bool:
        done = run("topics", "elect", bootstrap=bootstrap)
        return done.code == 0 and led()

    until(elected, "the preferred leaders lead")
    until(
        lambda: "already" in run("topics", "elect", "t", bootstrap=bootstrap).out,
        "every broker knows that they do",
    )
    assert run("topics", "elect", "none", bootstrap=bootstrap).code == 1


def a_fourth_broker(data: Path, bootstrap: str) -> None:
    """It joins by itself; nobody changes a setting."""
    fewer = run("cluster", "up", "--brokers", "2", "--data", str(data))
    assert (fewer.code, "`up` takes none away" in fewer.err) == (1, True)
    ports = run("cluster", "up", "--port", "9092", "--data", str(data))
    assert (ports.code, "has a cluster already" in ports.err) == (1, True)
    same = bootstrap.partition(",")[0].rpartition(":")[2]
    more = run("cluster", "up", "--brokers", "4", "--port", same, "--data", str(data))
    assert more.code == 0, more.err
    assert "4 brokers ready" in more.out
    assert "new: 4" in more.out
    assert "new topics get" not in more.out, "as many as before, and that is three"

    def known() -> list[int]:
        asked = run("cluster", "describe", "--json", bootstrap=bootstrap)
        return [row["id"] for row in asked.json["brokers"]]

    until(lambda: known() == [1, 2, 3, 4], "the others know it")


def test_a_failed_start_leaves_nothing_running(data: Path) -> None:
    """The broker cannot start: ZooKeeper is stopped again."""
    made = run("cluster", "up", "--brokers", "1", "--data", os.path.relpath(data), *ports())
    assert made.code == 0, made.err
    status = run("cluster", "status", "--data", str(data), "--json").json
    assert status["zookeeper"]["running"], "also if the folder is named another way"
    assert status["brokers"][0]["running"]
    assert run("cluster", "down", "--data", str(data)).code == 0
    with (data / "broker-1.properties").open("a") as file:
        file.write("num.partitions=none\n")
    failed = run("cluster", "up", "--data", str(data))
    assert failed.code == 1
    assert "broker 1 did not start" in failed.err
    assert "num.partitions" in failed.err, "the end of its log says why"
    assert "what was started is stopped again" in failed.err
    status = run("cluster", "status", "--data", str(data), "--json").json
    assert not status["zookeeper"]["running"]
    assert not any(row["running"] for row in status["brokers"])


def test_one_command_at_a_time(tmp_path: Path) -> None:
    """`up` while another command is at work would forget what that one has started."""
    data = tmp_path / "cluster"
    data.mkdir()
    state = ClusterFolder(data, free_port(), 0, {1: BrokerEntry(1, free_port())})
    state.save()
    with locked(data):
        waiting = spawn("cluster", "down", "--data", str(data), bootstrap="")
        assert waiting.stderr is not None
        note = f"waiting for another tidelog cluster command (process {os.getpid()})\n"
        assert waiting.stderr.readline() == note
        assert run("cluster", "status", "--data", str(data)).code == 0, "it takes no lock"
        state.brokers[2] = BrokerEntry(2, free_port())
        state.save()
    out, err = waiting.communicate()
    assert (waiting.returncode, err) == (0, "")
    assert "stopped" in out
    after = ClusterFolder.load(data)
    assert after is not None
    assert list(after.brokers) == [1, 2], "it has read the state when it was its turn"


DEAD_FIRST_THREAD = """
import ctypes, platform, threading
threading.Thread(target=threading.Event().wait).start()
print("ready", flush=True)
ctypes.CDLL(None).syscall({"x86_64": 60, "aarch64": 93}[platform.machine()], 0)  # this thread only
"""


def test_a_process_runs_as_long_as_one_of_its_threads() -> None:
    """Its ports are closed by the last: whoever waits only for the first is too early."""
    command = [sys.executable, "-c", DEAD_FIRST_THREAD]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        stat = Path(f"/proc/{process.pid}/stat")
        until(lambda: stat.read_text().rpartition(")")[2].split()[0] == "Z", "it is dead")
        assert is_running(process.pid)
        process.kill()
        wait_gone(process.pid)
        assert not is_running(process.pid)


def test_one_broker_becomes_three(tmp_path: Path) -> None:
    """It is said that new topics still have one replica: from `default_replicas`."""
    grown = ClusterFolder.plan(tmp_path, 1, free_port(3), free_port(), {})
    grown.add(3)
    assert (len(grown.brokers), grown.default_replicas) == (3, 1)
    assert ClusterFolder.plan(tmp_path, 3, free_port(3), free_port(), {}).default_replicas == 3


def test_no_cluster(tmp_path: Path) -> None:
    for command in (["status"], ["kill", "1"], ["start", "1"], ["down"]):
        done = run("cluster", *command, "--data", str(tmp_path / "none"))
        assert done.code == 1
        assert "there is no cluster in" in done.err


def test_arguments_that_cannot_be(tmp_path: Path) -> None:
    """They are told before anything is made."""
    data = tmp_path / "none"
    for args, reason in (
        (["--set", "foo.bar=1"], "foo.bar: there is no such setting"),
        (["--port", "31000", "--zookeeper-port", "31002"], "is one of the brokers' ports"),
        (["--port", "70000"], "is not in the range"),
    ):
        done = run("cluster", "up", "--data", str(data), *args)
        assert done.code in (1, 2)
        assert reason in done.err
        assert not data.exists()


def test_reassign(data: Path, tmp_path: Path) -> None:
    """Take a broker out of service: plan, run, verify."""
    made = run("cluster", "up", "--brokers", "3", "--data", str(data), "--json", *ports())
    assert made.code == 0, made.err
    bootstrap = made.json["bootstrap"]
    options = ["--partitions", "6", "--replication-factor", "2"]
    assert run("topics", "create", "t", *options, bootstrap=bootstrap).code == 0
    everybody_knows(bootstrap, "t")
    wrong = run("topics", "reassign", "tt", "--plan", bootstrap=bootstrap)
    assert (wrong.code, wrong.out) == (1, "")
    assert "there is no topic 'tt'" in wrong.err
    planned = run("topics", "reassign", "t", "--plan", "--brokers", "1,2", bootstrap=bootstrap)
    assert planned.code == 0, planned.err
    assert planned.json["version"] == 1
    assert all(sorted(row["replicas"]) == [1, 2] for row in planned.json["partitions"])
    moves = tmp_path / "moves.json"
    moves.write_text(planned.out)
    begun = run("topics", "reassign", "--run", str(moves), bootstrap=bootstrap)
    assert begun.code == 0, begun.err
    verify = ["topics", "reassign", "--verify", str(moves)]
    until(lambda: run(*verify, bootstrap=bootstrap).code == 0, "all moves are done")

    def in_sync(broker: str) -> bool:
        (described,) = run("topics", "describe", "t", "--json", bootstrap=broker).json
        rows = described["partitions"]
        return all(sorted(row["isr"]) == sorted(row["replicas"]) == [1, 2] for row in rows)

    for one in bootstrap.split(","):  # each tells it once it has heard
        until(lambda one=one: in_sync(one), "the new replicas are in sync")
    again = run("topics", "reassign", "t", "--plan", "--brokers", "1,2", bootstrap=bootstrap)
    assert again.json["partitions"] == []
    wrong = run("topics", "reassign", "t", "--plan", "--brokers", "1,9", bootstrap=bootstrap)
    assert "there is no broker 9" in wrong.err
    assert run("topics", "reassign", "t", bootstrap=bootstrap).code == 2

    def again_begun() -> str:
        return run("topics", "reassign", "--run", str(moves), bootstrap=bootstrap).out

    done = f"{len(planned.json['partitions'])} done already\n"
    until(lambda: again_begun() == done, "every broker knows that all is done")
    no_plans(bootstrap, tmp_path / "bad.json")
    throttled_move(bootstrap, data, tmp_path)


def no_plans(bootstrap: str, path: Path) -> None:
    row = '{"topic": "t", "partition": 0, "replicas": [1]}'
    for text, reason in (
        ("", "is not a plan (no JSON at line 1, column 1)"),
        ("[]", 'is not a plan (it has no list "partitions")'),
        ('{"partitions": {}}', 'is not a plan (it has no list "partitions")'),
        (f'{{"version": 2, "partitions": [{row}]}}', "a plan of version 2: only 1 is known"),
        (f'{{"partitions": [{row}, 7]}}', "number 2 of its partitions should look like"),
        ('{"partitions": [{"topic": "t"}]}', "number 1 of its partitions should look like"),
        (f'{{"partitions": [{row.replace("[1]", "1")}]}}', "should look like"),
        (f'{{"partitions": [{row}, {row}]}}', "has t-0 twice"),
        (f'{{"partitions": [{row[:-1]}, "log_dirs": ["/d"]}}]}}', "log_dirs of t-0"),
    ):
        path.write_text(text)
        bad = run("topics", "reassign", "--run", str(path), bootstrap=bootstrap)
        assert (bad.code, reason in bad.err) == (1, True), bad.err
    path.write_text('{"version": 1, "partitions": []}')  # as --plan prints it
    for step in ("--run", "--verify"):
        empty = run("topics", "reassign", step, str(path), bootstrap=bootstrap)
        assert (empty.code, "nothing has to move" in empty.err) == (0, True), empty.err
    path.write_bytes(b"\xff\xfe")
    assert "no text" in run("topics", "reassign", "--run", str(path), bootstrap=bootstrap).err


def throttled_move(bootstrap: str, data: Path, tmp_path: Path) -> None:
    """At a byte a second the first fetch is the last; at a higher rate the move ends."""
    made = run("topics", "create", "big", "--assignment", "1", bootstrap=bootstrap)
    assert made.code == 0, made.err
    everybody_knows(bootstrap, "big")
    text = "".join(f"{os.urandom(5000).hex()}\n" for _ in range(400))
    assert run("produce", "big", bootstrap=bootstrap, stdin=text).code == 0
    moves = tmp_path / "big.json"
    row = {"topic": "big", "partition": 0, "replicas": [2]}
    moves.write_text(json.dumps({"version": 1, "partitions": [row]}))

    def begin(rate: int | None = None) -> str:
        options = [] if rate is None else ["--throttle", str(rate)]
        begun = run("topics", "reassign", "--run", str(moves), *options, bootstrap=bootstrap)
        assert begun.code == 0, begun.err
        return begun.err

    def own(kind: str, name: str) -> dict[str, str]:
        (found,) = run("configs", "describe", kind, name, "--json", bootstrap=bootstrap).json
        rows = found["config"]
        return {row["name"]: row["value"] for row in rows if "throttled" in row["name"]}

    def copied() -> int:
        return sum(path.stat().st_size for path in (data / "broker-2" / "big-0").glob("*.log"))

    begin(1)
    replicas = {
        "leader.replication.throttled.replicas": "0:1",
        "follower.replication.throttled.replicas": "0:2",
    }
    until(lambda: own("--topic", "big") == replicas, "any broker knows the replicas")
    rates = ("leader.replication.throttled.rate", "follower.replication.throttled.rate")
    for broker in ("1", "2"):
        until(lambda b=broker: own("--broker", b) == dict.fromkeys(rates, "1"), "it knows the rate")
    until(copied, "the first fetch is there")
    verify = ["topics", "reassign", "--verify", str(moves)]
    moving = run(*verify, bootstrap=bootstrap)
    assert (moving.code, "moving" in moving.out) == (1, True)
    assert copied() < len(text) / 2  # a fetch has a mebibyte
    facts = run("cluster", "describe", "--json", bootstrap=bootstrap).json
    assert (facts["under_replicated"], facts["moving"]) == (0, 1)
    described = run("topics", "describe", "big", bootstrap=bootstrap).out
    assert "1 partition, 1 replica," in described
    assert "1 partition being reassigned" in described
    assert "under-replicated" not in described
    plan = run("topics", "reassign", "--plan", bootstrap=bootstrap)
    assert "1 move under way (big-0), which the plan takes as done" in plan.err
    rows = [row["replicas"] for row in plan.json["partitions"] if row["topic"] == "big"]
    assert all(len(replicas) == 1 for replicas in rows), "it keeps its one replica"
    assert "an earlier --throttle still holds: at most 1 B a second; --run" in begin()
    begin(2)  # another rate while it moves
    until(lambda: own("--broker", "2") == dict.fromkeys(rates, "2"), "the new rate is known")
    assert own("--topic", "big") == replicas
    begin(10**9)
    said = ""

    def done() -> bool:
        nonlocal said
        result = run(*verify, bootstrap=bootstrap)
        said += result.err
        return result.code == 0

    until(done, "the move has ended")
    assert "the throttle is taken away" in said
    until(lambda: own("--broker", "1") == own("--broker", "2") == {}, "both know that")
    until(lambda: own("--topic", "big") == {}, "any broker knows that")
    assert copied() >= len(text)
    assert run("topics", "reassign", "--plan", "--throttle", "5", bootstrap=bootstrap).code == 2
