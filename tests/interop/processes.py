"""Java programs that run beside a test: their output is kept, they are killed and started again."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path

_PATIENCE = 60  # seconds for a program to end in good order


class Program:
    """``with Program("worker", [...command...], folder) as program:``, ended whatever happens."""

    def __init__(self, name: str, command: Sequence[str | Path], folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.name = name
        self._command = [str(part) for part in command]
        self._output = folder / f"{name}.log"
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def log(self) -> str:
        return self._output.read_text(errors="replace")

    @property
    def running(self) -> bool:
        """Started, and not ended by us since."""
        return self._process is not None

    def start(self) -> Program:
        assert self._process is None, f"{self.name} runs already"
        with self._output.open("a") as output:
            output.write("=== started\n")
            output.flush()
            self._process = subprocess.Popen(
                self._command, stdin=subprocess.DEVNULL, stdout=output, stderr=output
            )
        return self

    def check(self) -> None:
        """It must still run."""
        assert self._process is not None
        code = self._process.poll()
        assert code is None, f"{self.name} ended with {code}:\n{self.log[-5000:]}"

    def kill(self) -> None:
        """kill -9"""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def stop(self) -> None:
        """SIGTERM; it must end by itself."""
        assert self._process is not None
        self._process.terminate()
        self._process.wait(_PATIENCE)
        self._process = None

    def __enter__(self) -> Program:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.kill()
