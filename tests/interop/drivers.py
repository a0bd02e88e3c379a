"""Programs on strangers' clients, driven over standard input: a call a line, an answer a line.

Every program knows ``version``, ``produce`` and ``consume``; what else it knows is at the top
of its source.  Bytes travel as base64.
"""

from __future__ import annotations

import base64
import json
import os
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from support.client_records import Row


class DriverError(Exception):
    """An error that the client raised; ``type`` is its class or code there."""

    def __init__(self, error: dict[str, str]) -> None:
        super().__init__(f"{error['type']}: {error['message']}")
        self.type = error["type"]


class Driver:
    """``with Driver([...command...]) as driver: driver("describe_cluster", bootstrap)``"""

    def __init__(self, command: Sequence[str | Path]) -> None:
        self._command = [str(part) for part in command]

    def __enter__(self) -> Driver:
        self._errors = tempfile.TemporaryFile("w+")
        self._process = subprocess.Popen(
            self._command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
        )
        return self

    def __exit__(self, *_: object) -> None:
        self._process.stdin.close()
        try:
            self._process.wait(100)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()
        self._errors.close()

    @property
    def log(self) -> str:
        """What the program has said on standard error."""
        size = os.fstat(self._errors.fileno()).st_size
        return os.pread(self._errors.fileno(), size, 0).decode(errors="replace")

    def __call__(self, op: str, bootstrap: str = "", **more: Any) -> Any:
        call = {"op": op, "bootstrap": bootstrap, **more}
        self._process.stdin.write(json.dumps(call) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        assert line, f"the driver ended: {self.log[-2000:]}"
        answer = json.loads(line)
        if "error" in answer:
            raise DriverError(answer["error"])
        return answer["ok"]

    def produce(self, bootstrap: str, topic: str, rows: Sequence[Row], **more: Any) -> list[int]:
        """Write rows to partition 0; returns their offsets."""
        return self("produce", bootstrap, topic=topic, rows=[to_json(row) for row in rows], **more)

    def consume(
        self, bootstrap: str, topic: str, count: int, start: int = 0, **more: Any
    ) -> list[Row]:
        """Read rows of partition 0."""
        found = self("consume", bootstrap, **{"from": [[topic, 0, start]], "count": count, **more})
        return [from_json(row) for row in found]


def to_json(row: Row) -> dict[str, Any]:
    return {
        "key": _text(row.key),
        "value": _text(row.value),
        "headers": [[name, _text(value)] for name, value in row.headers],
        "timestamp": row.timestamp,
    }


def from_json(row: dict[str, Any]) -> Row:
    headers = tuple((name, _bytes(value)) for name, value in row["headers"])
    return Row(_bytes(row["key"]), _bytes(row["value"]), headers, row["timestamp"])


def _text(value: bytes | None) -> str | None:
    return None if value is None else base64.b64encode(value).decode()


def _bytes(value: str | None) -> bytes | None:
    return None if value is None else base64.b64decode(value)
