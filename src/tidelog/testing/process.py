"""A broker in a process of its own: how it is launched, awaited and ended.

This is the one launcher: of tests (``LocalBroker``, ``LocalCluster``) and of ``tidelog cluster``,
whose brokers outlive the command and are found again by their process ids.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tidelog.testing.ports import free_port

_READY_SECONDS = 60
_STOP_SECONDS = 30
_LAST_LINES = 5


class BrokerProcess(ABC):
    """``tidelog up`` or ``tidelog server`` with its data in a folder, and its log beside."""

    name = "the broker"

    def __init__(
        self, data: Path, settings: Mapping[str, Any], port: int = 0, *, outlives_us: bool = False
    ) -> None:
        self.data = data
        self.settings = dict(settings)
        self.port = port or free_port()
        self.process: subprocess.Popen[str] | None = None
        self._outlives_us = outlives_us

    @property
    def bootstrap(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        assert self.process is not None, f"{self.name} is not running"
        return self.process.pid

    @property
    def log_path(self) -> Path:
        return self.data.with_name(self.data.name + ".log")

    @property
    def log(self) -> str:
        """What the broker has written to standard error, over all its lives."""
        return self.log_path.read_text(errors="replace") if self.log_path.exists() else ""

    @abstractmethod
    def _command(self) -> list[str]:
        """The arguments of ``tidelog`` beside the settings."""

    def launch(self) -> None:
        """Start without waiting; :meth:`wait_ready` waits."""
        command = [sys.executable, "-m", "tidelog", *self._command(), "--json"]
        for name, value in self.settings.items():
            command += ["--set", f"{name}={value}"]
        self.log_path.parent.mkdir(parents=True, exist_ok=True)
        with self.log_path.open("a") as log:
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                start_new_session=self._outlives_us,
            )

    def wait_ready(self) -> None:
        """Return when it serves; RuntimeError with the end of its log if it does not."""
        assert self.process is not None
        assert self.process.stdout is not None
        poll = select.poll()
        poll.register(self.process.stdout, select.POLLIN)
        if not poll.poll(_READY_SECONDS * 1000):
            problem = f"{self.name} is not ready after {_READY_SECONDS} s"
        elif line := self.process.stdout.readline():
            try:
                self.port = json.loads(line)["port"]
            except (ValueError, KeyError, TypeError):
                problem = f"{self.name} announced itself with {line.strip()!r}, and not with JSON"
            else:
                if self._outlives_us:
                    self.process.stdout.close()
                return
        else:
            problem = f"{self.name} did not start"
        self.kill()
        raise RuntimeError(f"{problem}; {self._end_of_log()}")

    def _end_of_log(self) -> str:
        lines = [line for line in self.log.splitlines() if line.strip()]
        if not lines:
            return f"{self.log_path} is empty"
        return "\n  ".join([f"{self.log_path} ends with", *lines[-_LAST_LINES:]])

    def stop(self, timeout: float = 60) -> int:
        """Stop cleanly; returns the exit code."""
        return self._end(signal.SIGTERM, timeout)

    def kill(self) -> None:
        """kill -9: no flush, no snapshot, no mark of a clean stop."""
        self._end(signal.SIGKILL, 60)

    def _end(self, number: signal.Signals, timeout: float) -> int:
        if self.process is None:
            return 0
        self.process.send_signal(number)
        code = self.process.wait(timeout)
        assert self.process.stdout is not None
        self.process.stdout.close()
        self.process = None
        return code


# -- processes that another command has started -----------------------------------


def is_running(pid: int, argument: str = "") -> bool:
    """Does a process live that has ``argument`` on its command line?

    After a restart of the machine another process may have the number.
    """
    if pid <= 0:
        return False
    try:
        command = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace")
    except OSError:
        return False
    return argument in command and _threads_live(pid)


def _threads_live(pid: int) -> bool:
    """The first thread of a process may be dead ("Z") while others still close its ports."""
    for path in Path(f"/proc/{pid}/task").glob("*/stat"):
        with contextlib.suppress(OSError):  # it has just ended
            if path.read_text().rpartition(")")[2].split()[0] not in "ZX":
                return True
    return False


def wait_gone(pid: int) -> None:
    """Wait for the end of a process; one that does not end in time is killed."""
    limit = time.monotonic() + _STOP_SECONDS
    while is_running(pid):
        if time.monotonic() > limit:
            os.kill(pid, signal.SIGKILL)
            limit = time.monotonic() + _STOP_SECONDS
        time.sleep(0.02)
