"""Ports for tests: two processes never get the same."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tidelog.testing.ports import free_port

PROGRAM = """
import sys
from tidelog.testing import ports
ports._candidates = lambda: range(int(sys.argv[1]), int(sys.argv[2]))
row = int(sys.argv[3])
try:
    while True:
        print(ports.free_port(row), flush=True)
except RuntimeError:
    print("no more", flush=True)
sys.stdin.read()
"""


def test_two_processes_get_different_ports(tmp_path: Path) -> None:
    first = free_port(10)  # ours, so that nobody else disturbs; the two have a list of their own
    environment = {**os.environ, "TMPDIR": str(tmp_path)}

    def ask(row: int) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-c", PROGRAM, str(first), str(first + 10), str(row)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        )

    with ask(4) as one:
        assert one.stdout is not None
        rows = [int(line) for line in iter(one.stdout.readline, "no more\n")]
        assert rows
        theirs = {port + i for port in rows for i in range(4)}
        with ask(1) as two:
            out, _ = two.communicate()
            others = [int(line) for line in out.splitlines()[:-1]]
        one.communicate()
    assert not theirs & set(others)
    assert len(set(others)) == len(others)
    assert all(first <= port < first + 10 for port in theirs | set(others))
