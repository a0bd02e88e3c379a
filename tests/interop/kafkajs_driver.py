"""Calls on kafkajs, from Python: one Node process per list of calls."""

from __future__ import annotations

import base64
import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

from support.client_records import Row

_FOLDER = Path(__file__).with_name("kafkajs")


class KafkaJsError(Exception):
    """An error that kafkajs raised; ``type`` is the protocol's name for it."""

    def __init__(self, error: dict[str, Any]) -> None:
        super().__init__(f"{error['name']}: {error['message']}")
        self.name = error["name"]
        self.type = error.get("type")


def why_not() -> str:
    """Why kafkajs cannot run here, or nothing."""
    if shutil.which("node") is None:
        return "node is not installed"
    if not (_FOLDER / "node_modules").is_dir():
        return "kafkajs is not installed: ./dev setup --clients"
    return ""


def kafkajs(bootstrap: str, *calls: list[Any], producer: dict[str, Any] | None = None) -> list[Any]:
    """Make calls like ``["admin", "listTopics"]``, one after the other; the first error raises."""
    task = {"bootstrap": bootstrap, "producer": producer or {}, "calls": calls}
    done = subprocess.run(
        ["node", str(_FOLDER / "run.mjs")],
        input=json.dumps(task),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    results = json.loads(done.stdout, object_hook=_from_json)
    for result in results:
        if "error" in result:
            raise KafkaJsError(result["error"])
    return [result["ok"] for result in results]


def message(row: Row) -> dict[str, Any]:
    """A row as a message of kafkajs, whose headers are an object with one value or several."""
    headers: dict[str, Any] = {}
    for name, value in row.headers:
        headers.setdefault(name, []).append(_bytes(value))
    return {
        "key": _bytes(row.key),
        "value": _bytes(row.value),
        "headers": {n: values[0] if len(values) == 1 else values for n, values in headers.items()},
        "timestamp": str(row.timestamp),
        "partition": 0,
    }


def _bytes(value: bytes | None) -> dict[str, str] | None:
    return None if value is None else {"base64": base64.b64encode(value).decode()}


def _from_json(value: dict[str, Any]) -> Any:
    return base64.b64decode(value["base64"]) if value.keys() == {"base64"} else value
