"""A worker of Kafka Connect in distributed mode, and its REST interface."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from interop.java import NEWEST, jars, java
from interop.processes import Program

from tidelog.testing.ports import free_port

_MAIN = "org.apache.kafka.connect.cli.ConnectDistributed"


class Worker(Program):
    """Workers with the same ``group`` share their connectors."""

    def __init__(self, name: str, folder: Path, bootstrap: str, group: str) -> None:
        self._url = f"http://127.0.0.1:{free_port()}"
        settings = {
            "bootstrap.servers": bootstrap,
            "group.id": group,
            "listeners": self._url,
            "plugin.discovery": "service_load",
            **{f"{part}.converter": f"{_STORAGE}.StringConverter" for part in ("key", "value")},
            **{f"{kind}.storage.topic": f"{group}-{kind}" for kind in _TOPICS},
            **{f"{kind}.storage.replication.factor": 1 for kind in _TOPICS},
            "offset.storage.partitions": 2,
            "offset.flush.interval.ms": 500,
            # Workers are killed; the others wait no longer than they must.
            "session.timeout.ms": 6000,
            "heartbeat.interval.ms": 500,
            "scheduled.rebalance.max.delay.ms": 0,
        }
        config = properties(folder / f"{name}.properties", settings)
        super().__init__(name, java("-cp", jars(NEWEST), _MAIN, config), folder)

    def ask(self, path: str, config: Mapping[str, Any] | None = None) -> Any:
        """GET, or PUT if there is something to say; None until the worker answers."""
        self.check()
        body = None if config is None else json.dumps(config).encode()
        request = urllib.request.Request(
            f"{self._url}/{path}",
            data=body,
            method="GET" if body is None else "PUT",
            headers={"Content-Type": "application/json"},
        )
        try:
            with urllib.request.urlopen(request, timeout=100) as answer:
                return json.load(answer)
        except urllib.error.HTTPError as error:
            if error.code in (404, 409, 500, 503):  # it is joining or rebalancing
                return None
            raise AssertionError(f"{path}: {error.code} {error.read().decode()}") from None
        except OSError:
            return None

    def runs(self, connector: str) -> bool:
        """The connector has a task that runs."""
        status = self.ask(f"connectors/{connector}/status")
        return bool(status) and [task["state"] for task in status["tasks"]] == ["RUNNING"]


_STORAGE = "org.apache.kafka.connect.storage"
_TOPICS = ("config", "offset", "status")


def properties(path: Path, settings: Mapping[str, Any]) -> Path:
    """A Java properties file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
    return path
