"""Apache Kafka as a peer: one combined KRaft node in a process of its own.

It has the shape of ``LocalBroker``: the same settings go in, ``bootstrap``, ``port``,
``pid`` and ``data`` come out.  The Java options are those of Kafka's own start script (a
heap of 1 GB, G1).  Formatting the storage is another Java program; it happens when the
object is made, so that no clock of a start-up holds it.
"""

from __future__ import annotations

import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

from bench.kafka_jars import NoKafka, java_command
from bench.wire import HOST, BenchError, connect, ping
from tidelog.testing.ports import free_port

HEAP = ("-Xmx1g", "-Xms1g")  # KAFKA_HEAP_OPTS of kafka-server-start.sh
_JVM = (  # KAFKA_JVM_PERFORMANCE_OPTS of kafka-run-class.sh
    "-server", "-XX:+UseG1GC", "-XX:MaxGCPauseMillis=20", "-XX:InitiatingHeapOccupancyPercent=35",
    "-XX:+ExplicitGCInvokesConcurrent", "-XX:MaxInlineLevel=15",
)  # fmt: skip
_START_TIMEOUT = 180  # a large data directory is recovered before the port opens
_CLUSTER = "dGlkZWxvZy1iZW5jaC0wMQ"

_BASE = {
    "process.roles": "broker,controller",
    "controller.listener.names": "CONTROLLER",
    "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
    "offsets.topic.replication.factor": 1,
    "offsets.topic.num.partitions": 1,
    "transaction.state.log.replication.factor": 1,
    "transaction.state.log.min.isr": 1,
    "share.coordinator.state.topic.replication.factor": 1,
    "share.coordinator.state.topic.min.isr": 1,
    "group.initial.rebalance.delay.ms": 0,
    "log.initial.task.delay.ms": 100,  # or retention begins half a minute after the start
}


class KafkaNode:
    """``with KafkaNode(settings) as node: ... node.bootstrap ...``"""

    heap = HEAP

    def __init__(
        self, settings: Mapping[str, Any] | None = None, data: str | Path | None = None
    ) -> None:
        self._temporary = data is None
        self.data = Path(data) if data else Path(tempfile.mkdtemp(prefix="tidelog-bench-kafka-"))
        self.port = free_port()
        self.process: subprocess.Popen[bytes] | None = None
        self._beside = self.data.with_name(self.data.name + ".kafka")
        self._beside.mkdir(parents=True, exist_ok=True)
        self._properties = self._beside / "server.properties"
        self._write(settings or {})
        self._format()

    @property
    def bootstrap(self) -> str:
        return f"{HOST}:{self.port}"

    @property
    def pid(self) -> int:
        assert self.process is not None, "the node is not running"
        return self.process.pid

    @property
    def log(self) -> str:
        """What the node has said, over all its lives."""
        path = self._beside / "kafka.log"
        return path.read_text(errors="replace") if path.exists() else ""

    def _place(self) -> dict[str, Any]:
        """Who it is and who its controllers are: by itself, it is its own."""
        controller = free_port()
        return {
            "node.id": 1,
            "listeners": f"PLAINTEXT://{HOST}:{self.port},CONTROLLER://{HOST}:{controller}",
            "controller.quorum.voters": f"1@{HOST}:{controller}",
        }

    def _write(self, settings: Mapping[str, Any]) -> None:
        rows: dict[str, Any] = {
            **settings,
            **_BASE,
            "advertised.listeners": f"PLAINTEXT://{HOST}:{self.port}",
            "log.dirs": self.data,
            **self._place(),
        }
        self._properties.write_text("".join(f"{name}={value}\n" for name, value in rows.items()))

    def _format(self) -> None:
        command = java_command("kafka.tools.StorageTool", "-Xmx256m", "-XX:TieredStopAtLevel=1")
        command += ["format", "-t", _CLUSTER, "-c", str(self._properties), "--ignore-formatted"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        if done.returncode:
            raise NoKafka(f"Kafka's storage tool failed: {(done.stderr or done.stdout)[-400:]}")

    def start(self) -> KafkaNode:
        """Start and wait until it answers."""
        self.launch()
        self.wait_ready()
        return self

    def launch(self) -> None:
        command = java_command("kafka.Kafka", *self.heap, *_JVM)
        with (self._beside / "kafka.log").open("ab") as log:
            self.process = subprocess.Popen(
                [*command, str(self._properties)],
                cwd=self._beside,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    def wait_ready(self) -> None:
        assert self.process is not None
        deadline = time.monotonic() + _START_TIMEOUT
        while not self._serves():
            if self.process.poll() is not None:
                self.process = None
                raise BenchError(f"Kafka did not start: {self.log[-800:]}")
            if time.monotonic() > deadline:
                self.kill()
                raise BenchError(f"Kafka was not ready in {_START_TIMEOUT} s: {self.log[-800:]}")
            time.sleep(0.01)

    def _serves(self) -> bool:
        try:
            with connect(self.port) as sock:
                ping(sock)
                return True
        except (OSError, BenchError):
            return False

    def stop(self, timeout: float = 60) -> int:
        """Stop cleanly; returns the exit code."""
        return self._end(signal.SIGTERM, timeout)

    def kill(self) -> None:
        """kill -9: no flush, no clean mark."""
        self._end(signal.SIGKILL, 30)

    def restart(self) -> KafkaNode:
        self.stop()
        return self.start()

    def _end(self, number: signal.Signals, timeout: float) -> int:
        process, self.process = self.process, None
        if process is None:
            return 0
        process.send_signal(number)
        try:
            return process.wait(timeout)
        except subprocess.TimeoutExpired:
            process.kill()
            return process.wait()

    def __enter__(self) -> KafkaNode:
        return self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self.process is not None:
            if self._temporary:
                self.kill()
            else:
                self.stop()
        if self._temporary:
            shutil.rmtree(self.data, ignore_errors=True)
            shutil.rmtree(self._beside, ignore_errors=True)
