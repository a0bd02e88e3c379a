"""A real ZooKeeper server as a process of ours, from the jars in PySpark's wheel.

    with ZooKeeperServer("data/zookeeper", 2181) as server:
        print(server.connect)

The data, ``zoo.cfg`` and the log of the server (``zookeeper.log``) are in one folder.  It
listens on this machine only, unless told otherwise.  For an ensemble on one machine see
:func:`ensemble`.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

from tidelog import java
from tidelog.errors import SettingError
from tidelog.keeper.zookeeper_absence import four_letters

PORT = 2181
_MAIN = "org.apache.zookeeper.server.quorum.QuorumPeerMain"
_JARS = ("zookeeper-*", "slf4j-api-*", "log4j-*", "metrics-core-*", "snappy-java-*", "netty-*")
_READY_SECONDS = 60
_LOGGING = """\
status = warn
appender.out.type = Console
appender.out.name = out
appender.out.layout.type = PatternLayout
appender.out.layout.pattern = %d{ISO8601} %p %c{1}: %m%n
rootLogger.level = warn
rootLogger.appenderRef.out.ref = out
"""


class ZooKeeperServer:
    """See the module.  ``peers`` are the quorum and election ports of an ensemble."""

    def __init__(
        self,
        data: str | Path,
        port: int = PORT,
        *,
        host: str = "127.0.0.1",
        number: int = 0,
        peers: Sequence[tuple[int, int]] = (),
        sync: bool = True,
    ) -> None:
        self.data = Path(data)
        self.port = port
        self.host = host
        self.number = number
        self._peers = peers
        self._sync = sync
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def connect(self) -> str:
        """For ``zookeeper.connect``."""
        host = "localhost" if self.host in ("", "0.0.0.0") else self.host
        return f"{host}:{self.port}"

    def start(self) -> ZooKeeperServer:
        """Start it; :meth:`wait_ready` says when it serves."""
        try:
            runtime, class_path = java.find(), java.class_path(*_JARS)
        except java.NotInstalled as error:
            raise SettingError(f"ZooKeeper cannot be started: {error}") from error
        self._check_ports()
        self.data.mkdir(parents=True, exist_ok=True)
        self._write_files()
        options = ["-Xms64m", "-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]
        options += [f"-Dlog4j2.configurationFile={self.data / 'log4j2.properties'}"]
        options += ["-Dzookeeper.jmx.log4j.disable=true", "-Dzookeeper.admin.enableServer=false"]
        options += ["-Djute.maxbuffer=4194304", "-Djava.awt.headless=true"]
        if not self._sync:
            options.append("-Dzookeeper.forceSync=no")
        command = [str(runtime.executable), *options, "-cp", class_path, _MAIN]
        with (self.data / "zookeeper.log").open("ab") as log:
            self.process = subprocess.Popen(
                [*command, str(self.data / "zoo.cfg")],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,  # Ctrl-C is for us; we stop it
            )
        return self

    def _check_ports(self) -> None:
        own = self._peers[self.number - 1] if self._peers else ()
        for port in (self.port, *own):
            with socket.socket() as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                try:
                    probe.bind((self.host, port))
                except OSError as error:
                    raise SettingError(
                        f"port {port} of {self.host or 'this machine'} cannot be used by "
                        f"ZooKeeper: {(error.strerror or str(error)).lower()}; "
                        "choose another with --port"
                    ) from error

    def _write_files(self) -> None:
        lines = {
            "dataDir": self.data.resolve(),
            "clientPort": self.port,
            "clientPortAddress": self.host or "0.0.0.0",
            "tickTime": 1000,
            "minSessionTimeout": 1000,
            "maxSessionTimeout": 120000,
            "initLimit": 10,
            "syncLimit": 5,
            "maxClientCnxns": 0,
            "autopurge.purgeInterval": 1,
            "4lw.commands.whitelist": "ruok,srvr,mntr",
            "admin.enableServer": "false",
        }
        for i, (quorum, election) in enumerate(self._peers, 1):
            lines[f"server.{i}"] = f"{self.host}:{quorum}:{election}"
        text = "".join(f"{name}={value}\n" for name, value in lines.items())
        (self.data / "zoo.cfg").write_text(text)
        (self.data / "log4j2.properties").write_text(_LOGGING)
        if self._peers:
            (self.data / "myid").write_text(f"{self.number}\n")

    def wait_ready(self) -> None:
        """Return when it serves; SettingError with its last words if it ended."""
        assert self.process is not None
        limit = time.monotonic() + _READY_SECONDS
        while "Mode:" not in self.ask("srvr"):
            if self.process.poll() is not None:
                raise SettingError(f"ZooKeeper has stopped: {self._last_words()}")
            if time.monotonic() > limit:
                self.stop()
                raise SettingError(
                    f"ZooKeeper does not serve after {_READY_SECONDS} s: {self._last_words()}"
                )
            time.sleep(0.05)

    def ask(self, word: str) -> str:
        """The answer to one of ZooKeeper's four letter words; empty if there is none."""
        host = "127.0.0.1" if self.host in ("", "0.0.0.0") else self.host
        try:
            return four_letters(host, self.port, word)
        except OSError:
            return ""

    def _last_words(self) -> str:
        path = self.data / "zookeeper.log"
        with contextlib.suppress(OSError):
            lines = [line for line in path.read_text(errors="replace").splitlines() if line.strip()]
            if lines:
                return f"{lines[-1].strip()} (see {path})"
        return f"see {path}"

    def stop(self) -> None:
        """Stop it cleanly; what it has acknowledged is on disk."""
        self._end(signal.SIGTERM)

    def terminate(self) -> None:
        """SIGTERM, without waiting: several stop at the same time."""
        if self.process is not None:
            self.process.terminate()

    def kill(self) -> None:
        """kill -9."""
        self._end(signal.SIGKILL)

    def _end(self, number: int) -> None:
        if self.process is None:
            return
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.process.pid, number)
        self.process.wait()
        self.process = None

    def __enter__(self) -> ZooKeeperServer:
        self.start()
        self.wait_ready()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()


def ensemble(data: str | Path, port: int = PORT, size: int = 3) -> list[ZooKeeperServer]:
    """Servers for one machine: clients at ``port``, ``port + 1``, ...; among themselves they
    use the ports ten and twenty above."""
    peers = [(port + 10 + i, port + 20 + i) for i in range(size)]
    return [
        ZooKeeperServer(Path(data) / str(i + 1), port + i, number=i + 1, peers=peers)
        for i in range(size)
    ]
