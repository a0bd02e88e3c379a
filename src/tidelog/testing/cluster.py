"""A cluster in processes of its own: ZooKeeper, and as many brokers as you like.

    with LocalCluster(3) as cluster:
        producer = Producer({"bootstrap.servers": cluster.bootstrap})
        cluster.brokers[1].kill()

Brokers have the ids 1, 2, 3, ...  Each can be killed, stopped, frozen and started again; it
keeps its port and its data.
"""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from tidelog.keeper.zookeeper_server import ZooKeeperServer
from tidelog.testing.ports import free_port
from tidelog.testing.process import BrokerProcess


class ClusterBroker(BrokerProcess):
    """One broker of a cluster; with ``config`` its settings are in that file."""

    def __init__(
        self,
        broker_id: int,
        data: Path,
        settings: Mapping[str, Any],
        port: int = 0,
        config: Path | None = None,
    ) -> None:
        super().__init__(data, settings, port, outlives_us=config is not None)
        self.broker_id = broker_id
        self.name = f"broker {broker_id}"
        self._config = config

    def _command(self) -> list[str]:
        if self._config is not None:
            return ["server", "--config", str(self._config)]
        own = {
            "broker.id": self.broker_id,
            "log.dirs": self.data,
            "listeners": f"PLAINTEXT://127.0.0.1:{self.port}",
        }
        return ["server", *(part for k, v in own.items() for part in ("--set", f"{k}={v}"))]

    def start(self) -> ClusterBroker:
        self.launch()
        self.wait_ready()
        return self

    def freeze(self) -> None:
        """SIGSTOP: it lives and does nothing."""
        os.kill(self.pid, signal.SIGSTOP)

    def thaw(self) -> None:
        os.kill(self.pid, signal.SIGCONT)


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

    def __exit__(self, *_: object) -> None:
        self.stop()
