"""Apache Kafka 3.9, the last with ZooKeeper, its ZooKeeper, and Kafka 4, which needs none.

Each is a process on 127.0.0.1; ``any_kafka("4.1", folder)`` gives one of them, running.
"""

from __future__ import annotations

import base64
import contextlib
import signal
import socket
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient
from interop.building import HERE
from interop.java import jars, java
from support.waiting import until

from tidelog.keeper.embedded import EmbeddedKeeper
from tidelog.testing.ports import free_port

_LOGGING = """\
log4j.rootLogger=WARN, stdout
log4j.appender.stdout=org.apache.log4j.ConsoleAppender
log4j.appender.stdout.layout=org.apache.log4j.PatternLayout
log4j.appender.stdout.layout.ConversionPattern=%p %m (%c)%n
"""


class _Server:
    """A Java process with a log file; ended with the ``with`` block, whatever happens."""

    version = "3.9"

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self.port = free_port()
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def log(self) -> str:
        return (self.folder / "output").read_text()

    def _run(self, main: str, properties: Mapping[str, object]) -> None:
        command = self._command(main, self._configured(properties))
        with (self.folder / "output").open("a") as output:
            self.process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=output, stderr=output
            )

    def _configured(self, properties: Mapping[str, object]) -> Path:
        config = self.folder / "server.properties"
        config.write_text("".join(f"{name}={value}\n" for name, value in properties.items()))
        return config

    def _command(self, main: str, *arguments: str | Path) -> list[str | Path]:
        logging = self.folder / "log4j.properties"
        logging.write_text(_LOGGING)
        libraries = jars(f"kafka-{self.version}")
        return java(f"-Dlog4j.configuration=file:{logging}", "-cp", libraries, main, *arguments)

    def _alive(self) -> None:
        assert self.process is not None
        assert self.process.poll() is None, self.log

    def _listens(self) -> bool:
        self._alive()
        try:
            socket.create_connection(("127.0.0.1", self.port), 1).close()
        except OSError:
            return False
        return True

    def end(self, number: signal.Signals) -> None:
        if self.process is not None:
            self.process.send_signal(number)
            self.process.wait(60)
            self.process = None

    def __exit__(self, *_: object) -> None:
        self.end(signal.SIGKILL)


class ZooKeeper(_Server):
    def __enter__(self) -> ZooKeeper:
        properties = {
            "dataDir": self.folder / "data",
            "clientPort": self.port,
            "clientPortAddress": "127.0.0.1",
            "admin.enableServer": "false",
        }
        self._run("org.apache.zookeeper.server.ZooKeeperServerMain", properties)
        until(self._listens, "ZooKeeper")
        return self

    def create(self, znodes: Mapping[str, bytes]) -> None:
        """Make znodes, parents first."""
        lines = [f"{path} {base64.b64encode(znodes[path]).decode()}" for path in sorted(znodes)]
        program = HERE / "java" / "Znodes.java"
        subprocess.run(
            java("-cp", jars("kafka-3.9"), program, f"127.0.0.1:{self.port}"),
            input="\n".join(lines),
            text=True,
            check=True,
            timeout=60,
        )


class Kafka39(_Server):
    def __init__(self, folder: Path, data: Path, keeper: ZooKeeper) -> None:
        super().__init__(folder)
        self._data = data
        self._properties = {
            "broker.id": 0,
            "listeners": f"PLAINTEXT://127.0.0.1:{self.port}",
            "zookeeper.connect": f"127.0.0.1:{keeper.port}",
            **self._common(data),
        }

    @staticmethod
    def _common(data: Path) -> dict[str, object]:
        return {
            "log.dirs": data,
            "log.segment.bytes": 100_000,
            "log.index.interval.bytes": 1000,
            "offsets.topic.num.partitions": 2,
            "offsets.topic.replication.factor": 1,
            "transaction.state.log.num.partitions": 2,
            "transaction.state.log.replication.factor": 1,
            "transaction.state.log.min.isr": 1,
        }

    @property
    def bootstrap(self) -> str:
        return f"127.0.0.1:{self.port}"

    def start(self) -> None:
        self._run("kafka.Kafka", self._properties)
        until(self._listens, f"Kafka {self.version}")
        admin = AdminClient({"bootstrap.servers": self.bootstrap, "log_level": 0})
        until(lambda: self._serves(admin), f"Kafka {self.version}")

    def _serves(self, admin: AdminClient) -> bool:
        """Registered, and leading all that is on its disk."""
        self._alive()
        try:
            found = admin.list_topics(timeout=2)
        except KafkaException:
            return False
        led = {f"{t.topic}-{p.id}" for t in found.topics.values() for p in t.partitions.values()}
        on_disk = {path.parent.name for path in self._data.glob("*/partition.metadata")}
        on_disk.discard("__cluster_metadata-0")  # the controllers' own
        leaders = {p.leader for t in found.topics.values() for p in t.partitions.values()}
        return bool(found.brokers) and led >= on_disk and leaders <= {0}

    def stop(self) -> None:
        self.end(signal.SIGTERM)

    def kill(self) -> None:
        self.end(signal.SIGKILL)

    def __enter__(self) -> Kafka39:
        self.start()
        return self


class Kafka4(Kafka39):
    """One node that is broker and controller."""

    def __init__(self, folder: Path, data: Path, version: str) -> None:
        _Server.__init__(self, folder)
        self.version = version
        self._data = data
        controller = free_port()
        self._properties = {
            "process.roles": "broker,controller",
            "node.id": 0,
            "listeners": f"PLAINTEXT://127.0.0.1:{self.port},CONTROLLER://127.0.0.1:{controller}",
            "controller.listener.names": "CONTROLLER",
            "controller.quorum.voters": f"0@127.0.0.1:{controller}",
            # Smaller segments than these are refused by now.
            **self._common(data) | {"log.segment.bytes": 1 << 20},
        }
        config = self._configured(self._properties)
        format_ = ("format", "-t", "dGlkZWxvZy10ZXN0cy0wMQ", "-c", config)
        done = subprocess.run(
            self._command("kafka.tools.StorageTool", *format_), capture_output=True, text=True
        )
        assert done.returncode == 0, done.stdout + done.stderr


VERSIONS = ("3.9", "4.1")


@contextlib.contextmanager
def any_kafka(version: str, folder: Path) -> Iterator[Kafka39]:
    """A Kafka of one of ``VERSIONS``, or the newest (4.3), with all that it needs."""
    with contextlib.ExitStack() as stack:
        if version != "3.9":
            yield stack.enter_context(Kafka4(folder / "kafka", folder / "data", version))
            return
        keeper = stack.enter_context(ZooKeeper(folder / "zookeeper"))
        yield stack.enter_context(Kafka39(folder / "kafka", folder / "data", keeper))


def znodes(journal: Path) -> dict[str, bytes]:
    """All that our keeper holds, as ZooKeeper is to hold it."""
    keeper = EmbeddedKeeper(str(journal))
    keeper._replay(journal.read_bytes())
    return {path: node.data for path, node in keeper._nodes.items() if path != "/"}
