"""``tidelog zookeeper``: a real server that starts, says so and stops."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from support.waiting import until

from tidelog.keeper.keeper import Create
from tidelog.keeper.zookeeper import ZooKeeper
from tidelog.testing.ports import free_port
from tidelog.testing.process import is_running


def command(*options: str) -> list[str]:
    return [sys.executable, "-m", "tidelog", "zookeeper", "--json", *options]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_start_and_stop(tmp_path: Path, number: int) -> None:
    port = free_port()
    options = ["--data", str(tmp_path), "--port", str(port)]
    with subprocess.Popen(command(*options), stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        facts = json.loads(process.stdout.readline())
        assert facts["connect"] == f"127.0.0.1:{port}"
        keeper = await ZooKeeper.connect(facts["connect"], 30_000, 100_000)
        await keeper.multi([Create("/a")])
        await keeper.close()
        process.send_signal(number)
        assert process.wait(100) == 0
    (server,) = facts["servers"]
    with pytest.raises(ProcessLookupError):
        os.kill(server, 0)


def test_a_port_in_use(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        done = subprocess.run(
            command("--data", str(tmp_path), "--port", str(port)),
            capture_output=True,
            text=True,
            check=False,
        )
    assert done.returncode == 1
    assert f"port {port} of 127.0.0.1 cannot be used by ZooKeeper: address already" in done.stderr


def test_no_java(tmp_path: Path) -> None:
    program = (
        "import sys; from tidelog import java; java._candidates = lambda: iter(());"
        "from tidelog.tools.main import main; main(['zookeeper', '--data', sys.argv[1]])"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert "this needs Java 17 or newer, and there is none" in done.stderr
    assert "Traceback" not in done.stderr


async def test_an_ensemble_survives_the_death_of_one(tmp_path: Path) -> None:
    port = free_port(30)  # for clients, and ten and twenty above for the servers
    options = ["--ensemble", "--data", str(tmp_path), "--port", str(port)]
    with subprocess.Popen(command(*options), stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        facts = json.loads(process.stdout.readline())
        assert facts["connect"].count(",") == 2
        keeper = await ZooKeeper.connect(facts["connect"], 30_000, 100_000)
        await keeper.multi([Create("/a", b"1")])
        os.kill(facts["servers"][0], signal.SIGKILL)
        assert (await keeper.get("/a"))[0] == b"1"
        await keeper.close()
        # A second signal, while it waits for a server that does not end, leaves none behind.
        _, frozen, other = facts["servers"]
        os.kill(frozen, signal.SIGSTOP)
        process.send_signal(signal.SIGTERM)
        until(lambda: not is_running(other), "the other server ends")
        process.send_signal(signal.SIGTERM)
        os.kill(frozen, signal.SIGCONT)
        assert process.wait(100) == 0
    for server in facts["servers"]:
        until(lambda pid=server: not Path(f"/proc/{pid}").exists(), "the servers are gone")
