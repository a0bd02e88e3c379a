"""A cluster on this machine that is kept in a folder, for ``tidelog cluster``.

    cluster.json              ports and process ids; what `status` goes by
    cluster.lock              locked while a command changes them
    zookeeper/                the data of ZooKeeper, its configuration and its log
    broker-1.properties       what broker 1 was started with; may be edited between starts
    broker-1/                 its data
    broker-1.log              its log

The processes outlive the command that starts them, and the next one finds them by their ids.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import signal
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

from tidelog.errors import SettingError
from tidelog.keeper.zookeeper_server import ZooKeeperServer
from tidelog.log.manager import CLEAN_MARK
from tidelog.ports import in_use
from tidelog.settings import Settings, read_properties
from tidelog.testing.cluster import ClusterBroker
from tidelog.testing.process import is_running, wait_gone
from tidelog.tools.output import note

SESSION_TIMEOUT_MS = 6000  # shorter than usual: there is no network that could be slow
_OWN = ("broker.id", "listeners", "log.dirs")


@contextlib.contextmanager
def locked(data: Path) -> Iterator[None]:
    """Change the cluster of a folder, after another command that does; read its state only then.

    ``up`` while ``down`` is still at work would forget processes.  The lock is the system's
    (flock), not the file: it is gone when its process is.
    """
    with (data / "cluster.lock").open("a+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.seek(0)
            holder = file.read().strip() or "not known yet"
            note(f"waiting for another tidelog cluster command (process {holder})")
            fcntl.flock(file, fcntl.LOCK_EX)
        file.truncate(0)
        file.write(str(os.getpid()))
        file.flush()
        yield


@dataclass(slots=True)
class BrokerEntry:
    """One broker: where it listens, and its process while it runs."""

    broker_id: int
    port: int
    pid: int = 0


@dataclass(slots=True)
class ClusterFolder:
    """See the module.  Made by :meth:`load` or :meth:`plan`."""

    data: Path
    zookeeper_port: int
    zookeeper_pid: int = 0
    brokers: dict[int, BrokerEntry] = field(default_factory=dict)

    # -- the files ----------------------------------------------------------------

    @classmethod
    def load(cls, data: Path) -> ClusterFolder | None:
        """The cluster of a folder, if there is one."""
        try:
            value = json.loads((data / "cluster.json").read_text())
            brokers = {row["broker_id"]: BrokerEntry(**row) for row in value["brokers"]}
            return cls(data, value["zookeeper_port"], value["zookeeper_pid"], brokers)
        except FileNotFoundError:
            return None
        except (ValueError, KeyError, TypeError) as error:
            raise SettingError(f"{data / 'cluster.json'} cannot be read: {error}") from error

    @classmethod
    def plan(
        cls,
        data: Path,
        count: int,
        port: int,
        zookeeper_port: int,
        settings: Mapping[str, str],
    ) -> ClusterFolder:
        """A new cluster: a port and a file of settings for each broker."""
        brokers = {i: BrokerEntry(i, port + i - 1) for i in range(1, count + 1)}
        planned = cls(data, zookeeper_port, 0, brokers)
        replicas = min(count, 3)
        values = {
            "zookeeper.connect": f"127.0.0.1:{zookeeper_port}",
            "zookeeper.session.timeout.ms": SESSION_TIMEOUT_MS,
            "default.replication.factor": replicas,
            "min.insync.replicas": max(1, replicas - 1),
            **settings,
        }
        for broker in brokers.values():
            planned._write_properties(broker, values)
        planned.save()
        return planned

    @staticmethod
    def check(count: int, port: int, zookeeper_port: int, settings: Mapping[str, str]) -> None:
        """Refuse what can be no cluster, before anything is made."""
        Settings.of(settings)
        for name in _OWN:
            if name in settings:
                raise SettingError(f"--set {name}: each broker of a cluster has its own {name}")
        ports = range(port, port + count)
        if zookeeper_port in ports:
            raise SettingError(
                f"--zookeeper-port {zookeeper_port} is one of the brokers' ports, "
                f"{ports[0]} to {ports[-1]}: choose another"
            )
        taken = [p for p in (zookeeper_port, *ports) if in_use(p)]
        if taken:
            raise SettingError(
                f"port {taken[0]} is in use: choose others with --port and --zookeeper-port"
            )

    def add(self, count: int) -> list[BrokerEntry]:
        """More brokers, ``count`` in all, with the settings of the first."""
        values = self._read_properties(min(self.brokers))
        for name in ("advertised.listeners", "broker.rack"):  # of the first alone
            values.pop(name, None)
        new = []
        for broker_id in range(max(self.brokers) + 1, count + 1):
            port = max(broker.port for broker in self.brokers.values()) + 1
            while port == self.zookeeper_port or in_use(port):
                port += 1
            broker = self.brokers[broker_id] = BrokerEntry(broker_id, port)
            self._write_properties(broker, values)
            new.append(broker)
        self.save()
        return new

    def _write_properties(self, broker: BrokerEntry, values: Mapping[str, object]) -> None:
        directory = (self.data / f"broker-{broker.broker_id}").resolve()
        listener = f"PLAINTEXT://127.0.0.1:{broker.port}"
        own = dict(zip(_OWN, (broker.broker_id, listener, directory), strict=True))
        rest = {name: value for name, value in values.items() if name not in own}
        text = "".join(f"{name}={value}\n" for name, value in {**own, **rest}.items())
        self._properties(broker.broker_id).write_text(text)

    def _read_properties(self, broker_id: int) -> dict[str, str]:
        return read_properties(self._properties(broker_id).read_text())

    def _properties(self, broker_id: int) -> Path:
        """Whole: processes are found by it, and another command may name the folder another way."""
        return (self.data / f"broker-{broker_id}.properties").resolve()

    def save(self) -> None:
        value = {
            "zookeeper_port": self.zookeeper_port,
            "zookeeper_pid": self.zookeeper_pid,
            "brokers": [asdict(broker) for broker in self.brokers.values()],
        }
        temporary = self.data / "cluster.json.tmp"
        temporary.write_text(json.dumps(value, indent=2) + "\n")
        temporary.replace(self.data / "cluster.json")

    # -- what it has --------------------------------------------------------------

    @property
    def bootstrap(self) -> str:
        return ",".join(f"127.0.0.1:{broker.port}" for broker in self.brokers.values())

    @property
    def first_port(self) -> int:
        return self.brokers[min(self.brokers)].port

    @property
    def default_replicas(self) -> int:
        """The replication factor of topics that are created without one."""
        settings = Settings.of(self._read_properties(min(self.brokers)))
        found: int = settings["default.replication.factor"]
        return found

    def broker(self, broker_id: int) -> BrokerEntry:
        found = self.brokers.get(broker_id)
        if found is None:
            known = ", ".join(map(str, self.brokers))
            raise SettingError(f"there is no broker {broker_id} in {self.data}; there are {known}")
        return found

    def log_path(self, broker_id: int) -> Path:
        return self.data / f"broker-{broker_id}.log"

    def runs(self, broker: BrokerEntry) -> bool:
        return is_running(broker.pid, str(self._properties(broker.broker_id)))

    @property
    def _zookeeper_data(self) -> Path:
        return (self.data / "zookeeper").resolve()

    @property
    def zookeeper_runs(self) -> bool:
        return is_running(self.zookeeper_pid, str(self._zookeeper_data))

    # -- starting and stopping ----------------------------------------------------

    def start_zookeeper(self) -> None:
        if self.zookeeper_runs:
            return
        server = ZooKeeperServer(self._zookeeper_data, self.zookeeper_port).start()
        assert server.process is not None
        self.zookeeper_pid = server.process.pid
        self.save()  # before we wait: `down` must find it, whatever happens
        server.wait_ready()

    def start(self, brokers: Iterable[BrokerEntry]) -> None:
        """Start brokers and wait until they serve; SettingError if one does not."""
        started = []
        for broker in brokers:
            data, config = (
                self.data / f"broker-{broker.broker_id}",
                self._properties(broker.broker_id),
            )
            process = ClusterBroker(broker.broker_id, data, {}, broker.port, config)
            process.launch()
            broker.pid = process.pid
            self.save()
            started.append(process)
        for process in started:
            try:
                process.wait_ready()
            except RuntimeError as error:
                raise SettingError(str(error)) from error

    def stop_all(self) -> list[BrokerEntry]:
        """Brokers first and all at once, then ZooKeeper; returns those that were not clean."""
        unclean = self.stop(self.brokers.values())
        self.stop_zookeeper()
        return unclean

    def stop(self, brokers: Iterable[BrokerEntry]) -> list[BrokerEntry]:
        """SIGTERM: they hand over what they lead, and leave their logs clean.

        Returns those that did not: a disk failed, or they did not end in time.
        """
        running = [broker for broker in brokers if self.runs(broker)]
        for broker in running:
            os.kill(broker.pid, signal.SIGTERM)
        for broker in running:
            wait_gone(broker.pid)
            broker.pid = 0
        self.save()
        return [broker for broker in running if not self._is_clean(broker)]

    def _is_clean(self, broker: BrokerEntry) -> bool:
        settings = Settings.of(self._read_properties(broker.broker_id))
        return all((Path(path) / CLEAN_MARK).exists() for path in settings["log.dirs"])

    def stop_zookeeper(self) -> None:
        if self.zookeeper_runs:
            os.kill(self.zookeeper_pid, signal.SIGTERM)
            wait_gone(self.zookeeper_pid)
        self.zookeeper_pid = 0
        self.save()

    def kill(self, broker: BrokerEntry) -> None:
        """kill -9."""
        os.kill(broker.pid, signal.SIGKILL)
        wait_gone(broker.pid)
        broker.pid = 0
        self.save()
