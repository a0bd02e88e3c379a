"""A broker in a process of its own; see the package."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

from tidelog.testing.ports import free_port


class LocalBroker:
    """``with LocalBroker() as broker: ... broker.bootstrap ...``

    ``settings`` are Kafka's.  With ``data`` the folder is yours and is kept; without it is
    temporary and goes at the end.  A restart keeps the port.
    """

    def __init__(
        self, settings: Mapping[str, Any] | None = None, data: str | Path | None = None
    ) -> None:
        self._settings = dict(settings or {})
        self._temporary = data is None
        self.data = Path(data) if data else Path(tempfile.mkdtemp(prefix="tidelog-"))
        self.port = free_port()
        self.process: subprocess.Popen[str] | None = None

    @property
    def bootstrap(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        assert self.process is not None, "the broker is not running"
        return self.process.pid

    @property
    def log(self) -> str:
        """What the broker has said on standard error, over all its lives."""
        path = self.data.with_name(self.data.name + ".log")
        return path.read_text() if path.exists() else ""

    def start(self) -> LocalBroker:
        """Start and wait until it serves."""
        command = [sys.executable, "-m", "tidelog", "up", "--json"]
        command += ["--data", str(self.data), "--port", str(self.port)]
        for name, value in self._settings.items():
            command += ["--set", f"{name}={value}"]
        log_path = self.data.with_name(self.data.name + ".log")
        with log_path.open("a") as log:
            self.process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=log, text=True
            )
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            self.process.wait()
            self.process = None
            said = self.log.strip()
            self._remove_temporary()
            raise RuntimeError(f"the broker did not start: {said}")
        self.port = json.loads(line)["port"]
        return self

    def stop(self, timeout: float = 60) -> int:
        """Stop cleanly; returns the exit code."""
        return self._end(signal.SIGTERM, timeout)

    def kill(self) -> None:
        """kill -9: no flush, no snapshot, no clean mark."""
        self._end(signal.SIGKILL, 60)

    def restart(self) -> LocalBroker:
        """A clean stop and a start on the same port and data."""
        self.stop()
        return self.start()

    def _end(self, number: signal.Signals, timeout: float) -> int:
        if self.process is None:
            return 0
        self.process.send_signal(number)
        code = self.process.wait(timeout)
        assert self.process.stdout is not None
        self.process.stdout.close()
        self.process = None
        return code

    def __enter__(self) -> LocalBroker:
        return self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self.process is not None:
            if self._temporary:
                self.kill()  # nothing is kept, so nothing need be flushed
            else:
                self.stop()
        self._remove_temporary()

    def _remove_temporary(self) -> None:
        if self._temporary:
            shutil.rmtree(self.data, ignore_errors=True)
            self.data.with_name(self.data.name + ".log").unlink(missing_ok=True)
