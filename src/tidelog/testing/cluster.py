"""A cluster in processes of its own: ZooKeeper, and as many brokers as you like.

    with LocalCluster(3) as cluster:
        producer = Producer({"bootstrap.servers": cluster.bootstrap})
        cluster.brokers[1].kill()

Brokers have the ids 1, 2, 3, ...  Each can be killed, stopped, frozen and started again; it
keeps its port and its data.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

from tidelog.coordination.zookeeper_server import ZooKeeperServer
from tidelog.testing.ports import free_port


class ClusterBroker:
    """One broker of a cluster."""

    def __init__(self, broker_id: int, data: Path, settings: Mapping[str, Any]) -> None:
        self.broker_id = broker_id
        self.data = data
        self.settings = dict(settings)
        self.port = free_port()
        self.process: subprocess.Popen[str] | None = None

    @property
    def bootstrap(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        assert self.process is not None, f"broker {self.broker_id} is not running"
        return self.process.pid

    @property
    def log_path(self) -> Path:
        return self.data.with_name(self.data.name + ".log")

    @property
    def log(self) -> str:
        """What the broker has said on standard error, over all its lives."""
        return self.log_path.read_text() if self.log_path.exists() else ""

    def launch(self) -> None:
        """Start without waiting; :meth:`wait_ready` waits."""
        values = {
            "broker.id": self.broker_id,
            "log.dirs": self.data,
            "listeners": f"PLAINTEXT://127.0.0.1:{self.port}",
            **self.settings,
        }
        command = [sys.executable, "-m", "tidelog", "server", "--json"]
        for name, value in values.items():
            command += ["--set", f"{name}={value}"]
        self.data.mkdir(parents=True, exist_ok=True)
        with self.log_path.open("a") as log:
            self.process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=log, text=True
            )

    def wait_ready(self) -> None:
        assert self.process is not None
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            self.process.wait()
            self.process = None
            raise RuntimeError(f"broker {self.broker_id} did not start: {self.log.strip()}")
        json.loads(line)

    def start(self) -> ClusterBroker:
        self.launch()
        self.wait_ready()
        return self

    def stop(self, timeout: float = 60) -> int:
        """Stop cleanly; returns the exit code."""
        return self._end(signal.SIGTERM, timeout)

    def kill(self) -> None:
        """kill -9: no flush, no goodbye."""
        self._end(signal.SIGKILL, 60)

    def freeze(self) -> None:
        """SIGSTOP: it lives and does nothing."""
        os.kill(self.pid, signal.SIGSTOP)

    def thaw(self) -> None:
        os.kill(self.pid, signal.SIGCONT)

    def _end(self, number: signal.Signals, timeout: float) -> int:
        if self.process is None:
            return 0
        self.process.send_signal(number)
        code = self.process.wait(timeout)
        assert self.process.stdout is not None
        self.process.stdout.close()
        self.process = None
        return code


class LocalCluster:
    """See the module.  With ``zookeeper`` an existing one is used (``host:port/path``)."""

    def __init__(
        self,
        brokers: int = 3,
        settings: Mapping[str, Any] | None = None,
        data: str | Path | None = None,
        zookeeper: str | None = None,
    ) -> None:
        self._temporary = data is None
        self.data = Path(data) if data else Path(tempfile.mkdtemp(prefix="tidelog-cluster-"))
        self._server: ZooKeeperServer | None = None
        if zookeeper is None:
            self._server = ZooKeeperServer(self.data / "zookeeper", free_port(), sync=False)
            zookeeper = self._server.connect
        self.zookeeper = zookeeper
        self._settings = {"zookeeper.connect": zookeeper, **(settings or {})}
        self.brokers: dict[int, ClusterBroker] = {}
        for broker_id in range(1, brokers + 1):
            self._add(broker_id)

    def _add(self, broker_id: int, **settings: Any) -> ClusterBroker:
        path = self.data / f"broker-{broker_id}"
        broker = ClusterBroker(broker_id, path, {**self._settings, **settings})
        self.brokers[broker_id] = broker
        return broker

    @property
    def bootstrap(self) -> str:
        return ",".join(broker.bootstrap for broker in self.brokers.values())

    def start(self) -> LocalCluster:
        if self._server is not None:
            self._server.start()
            self._server.wait_ready()
        for broker in self.brokers.values():
            broker.launch()
        for broker in self.brokers.values():
            broker.wait_ready()
        return self

    def add_broker(self, settings: Mapping[str, Any] | None = None) -> ClusterBroker:
        """One more; it joins by itself."""
        return self._add(max(self.brokers) + 1, **(settings or {})).start()

    def running(self) -> Iterator[ClusterBroker]:
        return (broker for broker in self.brokers.values() if broker.process is not None)

    def stop(self) -> None:
        """Kill everything; nothing is kept unless ``data`` was given."""
        for broker in self.brokers.values():
            broker.kill()
        if self._server is not None:
            self._server.kill()
        if self._temporary:
            shutil.rmtree(self.data, ignore_errors=True)

    def __enter__(self) -> LocalCluster:
        try:
            return self.start()
        except BaseException:
            self.stop()
            raise

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()
