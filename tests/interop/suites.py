"""Foreign clients' own test suites: run within a time limit, judge, and note for the docs.

A suite comes with its package from the ordinary registry and is built in ``.cache``.  What it
needs and tidelog does not have is skipped by name, with the reason.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import pytest
from interop.recording import note

TRANSACTIONS = "transactions: issue 14"


class Outcome(NamedTuple):
    """What became of one test: ``passed``, ``failed`` or ``skipped``."""

    state: str
    seconds: float = 0.0
    reason: str = ""  # of a test that was skipped


def run_suite(
    command: Sequence[str | Path], folder: Path, limit: float, log: Path, **environment: str
) -> int | None:
    """Run a suite with its output in ``log``; its exit code, or None if it took too long.

    It runs in a process group of its own, which ends with it whatever happens.
    """
    with log.open("w") as output:
        process = subprocess.Popen(
            [str(part) for part in command],
            cwd=folder,
            env={**os.environ, **environment},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            return process.wait(limit)
        except subprocess.TimeoutExpired:
            return None
        finally:
            _end(process)


def _end(process: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError):  # all of it has ended
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def judge(
    suite: str, version: str, outcomes: Mapping[str, Outcome], code: int | None, text: str
) -> None:
    """Print the table, note it for ``docs/compatibility.md``, and fail with what failed.

    ``code`` is the exit code of the suite, or None if it took too long, and ``text`` its output.
    """
    for name, outcome in outcomes.items():
        print(f"{name:60} {outcome.state:8} {outcome.seconds:7.1f} s  {outcome.reason}")
    failed = [name for name, outcome in outcomes.items() if outcome.state == "failed"]
    if failed or code != 0:
        ended = "took too long" if code is None else f"ended with {code}"
        last = "\n".join(text.splitlines()[-60:])
        pytest.fail(f"{suite} {version} {ended}; failed: {failed}\n{last}", pytrace=False)
    reasons: dict[str, list[str]] = {}
    for name, outcome in outcomes.items():
        if outcome.state == "skipped":
            reasons.setdefault(outcome.reason, []).append(name)
    passed = sorted(name for name, outcome in outcomes.items() if outcome.state == "passed")
    note(suite, {"version": version, "passed": passed, "skipped": reasons})
