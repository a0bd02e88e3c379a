"""A cluster on this machine: the processes behind ``tidelog cluster``.

One folder holds everything:

    cluster.json              ports and process ids; what `status` goes by
    cluster.lock              locked while a command changes them
    zookeeper/                the data of ZooKeeper, its configuration and its log
    broker-1.properties       what broker 1 was started with; may be edited between starts
    broker-1/                 its data
    broker-1.log              what it has said

A process id counts only while the process is what we started: after a restart of the machine
another may have the number.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

from tidelog.errors import SettingError
from tidelog.keeper.zookeeper_server import ZooKeeperServer
from tidelog.log.manager import CLEAN_MARK
from tidelog.ports import in_use
from tidelog.settings import Settings, read_properties

SESSION_TIMEOUT_MS = 6000  # shorter than usual: there is no network that could be slow
_OWN = ("broker.id", "listeners", "log.dirs")
_READY_SECONDS = 60
_LAST_LINES = 5
_STOP_SECONDS = 30


@dataclass(slots=True)
class BrokerProcess:
    """One broker: where it listens, and its process while it runs."""

    broker_id: int
    port: int
    pid: int = 0


@dataclass(slots=True)
class Processes:
    """See the module.  Made by :meth:`load` or :meth:`plan`."""

    data: Path
    zookeeper_port: int
    zookeeper_pid: int = 0
    brokers: dict[int, BrokerProcess] = field(default_factory=dict)

    # -- the file ---------------------------------------------------------------

    @classmethod
    def load(cls, data: Path) -> Processes | None:
        """The cluster of a folder, if there is one."""
        try:
            value = json.loads((data / "cluster.json").read_text())
            brokers = {row["broker_id"]: BrokerProcess(**row) for row in value["brokers"]}
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
    ) -> Processes:
        """A new cluster: ports for everybody, a file of settings for each broker."""
        brokers = {i: BrokerProcess(i, port + i - 1) for i in range(1, count + 1)}
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

    def add(self, count: int) -> list[BrokerProcess]:
        """More brokers, ``count`` in all, with the settings of the first."""
        first = self._properties(min(self.brokers))
        values = read_properties(first.read_text())
        for name in ("advertised.listeners", "broker.rack"):  # of the first alone
            values.pop(name, None)
        new = []
        for broker_id in range(max(self.brokers) + 1, count + 1):
            port = max(broker.port for broker in self.brokers.values()) + 1
            while port == self.zookeeper_port or in_use(port):
                port += 1
            broker = self.brokers[broker_id] = BrokerProcess(broker_id, port)
            self._write_properties(broker, values)
            new.append(broker)
        self.save()
        return new

    def _write_properties(self, broker: BrokerProcess, values: Mapping[str, object]) -> None:
        directory = (self.data / f"broker-{broker.broker_id}").resolve()
        listener = f"PLAINTEXT://127.0.0.1:{broker.port}"
        own = dict(zip(_OWN, (broker.broker_id, listener, directory), strict=True))
        rest = {name: value for name, value in values.items() if name not in own}
        text = "".join(f"{name}={value}\n" for name, value in {**own, **rest}.items())
        self._properties(broker.broker_id).write_text(text)

    def save(self) -> None:
        value = {
            "zookeeper_port": self.zookeeper_port,
            "zookeeper_pid": self.zookeeper_pid,
            "brokers": [asdict(broker) for broker in self.brokers.values()],
        }
        temporary = self.data / "cluster.json.tmp"
        temporary.write_text(json.dumps(value, indent=2) + "\n")
        temporary.replace(self.data / "cluster.json")

    def _properties(self, broker_id: int) -> Path:
        return self.data / f"broker-{broker_id}.properties"

    # Processes are known by these: whole, for another command may name the folder another way.

    def _config(self, broker: BrokerProcess) -> str:
        return str(self._properties(broker.broker_id).resolve())

    @property
    def _zookeeper_data(self) -> Path:
        return (self.data / "zookeeper").resolve()

    def log_path(self, broker_id: int) -> Path:
        return self.data / f"broker-{broker_id}.log"

    # -- facts ------------------------------------------------------------------

    @property
    def bootstrap(self) -> str:
        return ",".join(f"127.0.0.1:{broker.port}" for broker in self.brokers.values())

    @property
    def first_port(self) -> int:
        return self.brokers[min(self.brokers)].port

    @property
    def default_replicas(self) -> int:
        """How many replicas a topic gets for which nothing is said."""
        settings = Settings.of(read_properties(self._properties(min(self.brokers)).read_text()))
        found: int = settings["default.replication.factor"]
        return found

    def broker(self, broker_id: int) -> BrokerProcess:
        found = self.brokers.get(broker_id)
        if found is None:
            known = ", ".join(map(str, self.brokers))
            raise SettingError(f"there is no broker {broker_id} in {self.data}; there are {known}")
        return found

    def runs(self, broker: BrokerProcess) -> bool:
        return _runs(broker.pid, self._config(broker))

    @property
    def zookeeper_runs(self) -> bool:
        return _runs(self.zookeeper_pid, str(self._zookeeper_data))

    # -- starting and stopping ----------------------------------------------------

    def start_zookeeper(self) -> None:
        if self.zookeeper_runs:
            return
        server = ZooKeeperServer(self._zookeeper_data, self.zookeeper_port)
        server.start()
        assert server.process is not None
        self.zookeeper_pid = server.process.pid
        self.save()  # before we wait: `down` must find it, whatever happens
        server.wait_ready()

    def launch(self, broker: BrokerProcess) -> subprocess.Popen[bytes]:
        """Start a broker that outlives us."""
        command = [sys.executable, "-m", "tidelog", "server", "--json"]
        command += ["--config", self._config(broker)]
        with self.log_path(broker.broker_id).open("ab") as log, self._out(broker).open("wb") as out:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=log,
                start_new_session=True,
            )
        broker.pid = process.pid
        self.save()
        return process

    def wait_ready(self, broker: BrokerProcess, process: subprocess.Popen[bytes]) -> None:
        limit = time.monotonic() + _READY_SECONDS
        while b"\n" not in self._out(broker).read_bytes():
            if process.poll() is not None:
                raise SettingError(
                    f"broker {broker.broker_id} did not start; {self._last_words(broker)}"
                )
            if time.monotonic() > limit:
                raise SettingError(
                    f"broker {broker.broker_id} is not ready after {_READY_SECONDS} s; "
                    f"{self._last_words(broker)}"
                )
            time.sleep(0.02)

    def _out(self, broker: BrokerProcess) -> Path:
        return self.data / f"broker-{broker.broker_id}.ready"

    def _last_words(self, broker: BrokerProcess) -> str:
        path = self.log_path(broker.broker_id)
        lines = [line for line in path.read_text(errors="replace").splitlines() if line.strip()]
        if not lines:
            return f"{path} is empty"
        return "\n  ".join([f"{path} ends with", *lines[-_LAST_LINES:]])

    def stop_all(self) -> list[BrokerProcess]:
        """Brokers first and all at once, then ZooKeeper; returns those that were not clean."""
        unclean = self.stop(self.brokers.values())
        self.stop_zookeeper()
        return unclean

    def stop(self, brokers: Iterable[BrokerProcess]) -> list[BrokerProcess]:
        """SIGTERM: they hand over what they lead, and leave their logs clean.

        Returns those that did not: a disk failed, or they did not end in time.
        """
        running = [broker for broker in brokers if self.runs(broker)]
        for broker in running:
            os.kill(broker.pid, signal.SIGTERM)
        for broker in running:
            _wait_gone(broker.pid)
            broker.pid = 0
        self.save()
        return [broker for broker in running if not self._is_clean(broker)]

    def _is_clean(self, broker: BrokerProcess) -> bool:
        settings = Settings.of(read_properties(self._properties(broker.broker_id).read_text()))
        return all((Path(path) / CLEAN_MARK).exists() for path in settings["log.dirs"])

    def stop_zookeeper(self) -> None:
        if self.zookeeper_runs:
            os.kill(self.zookeeper_pid, signal.SIGTERM)
            _wait_gone(self.zookeeper_pid)
        self.zookeeper_pid = 0
        self.save()

    def kill(self, broker: BrokerProcess) -> None:
        """kill -9."""
        os.kill(broker.pid, signal.SIGKILL)
        _wait_gone(broker.pid)
        broker.pid = 0
        self.save()


def _runs(pid: int, word: str) -> bool:
    """Does a process live that was started with ``word`` on its command line?"""
    if pid <= 0:
        return False
    try:
        command = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace")
    except OSError:
        return False
    return word in command and _threads_live(pid)


def _threads_live(pid: int) -> bool:
    """The first thread of a process may be dead ("Z") while others still close its ports."""
    for path in Path(f"/proc/{pid}/task").glob("*/stat"):
        with contextlib.suppress(OSError):  # it has just ended
            if path.read_text().rpartition(")")[2].split()[0] not in "ZX":
                return True
    return False


def _wait_gone(pid: int) -> None:
    limit = time.monotonic() + _STOP_SECONDS
    while _runs(pid, ""):
        if time.monotonic() > limit:
            os.kill(pid, signal.SIGKILL)
            limit = time.monotonic() + _STOP_SECONDS
        time.sleep(0.02)
