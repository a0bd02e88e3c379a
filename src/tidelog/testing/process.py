"""A broker in a process of its own: how it is started, heard and ended."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tidelog.testing.ports import free_port


class BrokerProcess(ABC):
    """``tidelog up`` or ``tidelog server`` with its data in a folder, and its log beside."""

    name = "the broker"

    def __init__(self, data: Path, settings: Mapping[str, Any]) -> None:
        self.data = data
        self.settings = dict(settings)
        self.port = free_port()
        self.process: subprocess.Popen[str] | None = None

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
        """What the broker has said on standard error, over all its lives."""
        return self.log_path.read_text() if self.log_path.exists() else ""

    @abstractmethod
    def _command(self) -> list[str]:
        """What ``tidelog`` is told beside the settings."""

    def launch(self) -> None:
        """Start without waiting; :meth:`wait_ready` waits."""
        command = [sys.executable, "-m", "tidelog", *self._command(), "--json"]
        for name, value in self.settings.items():
            command += ["--set", f"{name}={value}"]
        self.log_path.parent.mkdir(parents=True, exist_ok=True)
        with self.log_path.open("a") as log:
            self.process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=log, text=True
            )

    def wait_ready(self) -> None:
        """Return when it serves; RuntimeError with its last words if it has ended."""
        assert self.process is not None
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            self.kill()
            raise RuntimeError(f"{self.name} did not start: {self.log.strip()}")
        self.port = json.loads(line)["port"]

    def stop(self, timeout: float = 60) -> int:
        """Stop cleanly; returns the exit code."""
        return self._end(signal.SIGTERM, timeout)

    def kill(self) -> None:
        """kill -9: no flush, no snapshot, no clean mark, no goodbye."""
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
