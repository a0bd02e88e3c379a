"""What the operating system says about processes and about the machine."""

from __future__ import annotations

import contextlib
import os
import platform
import resource
import sysconfig
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import tidelog
from bench.floor import ROLL_BYTES
from bench.kafka_jars import VERSION, java_version
from tidelog.testing.local import LocalBroker

LISTENER = {"listeners": "PLAINTEXT://127.0.0.1:0"}
# Logs that use their pages again (see the package) are looked after often.
BROKER = {**LISTENER, "log.retention.check.interval.ms": 10}
ROLLING = {  # of a topic, for both brokers
    "segment.bytes": ROLL_BYTES,
    "retention.bytes": ROLL_BYTES,
    "file.delete.delay.ms": 0,
}
_TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class Bench:
    """How much to measure, where, and whom to tell."""

    rounds: int
    seconds: float  # of one run
    quick: bool
    data: str | None
    progress: Callable[[str], None]
    kafka: bool = False  # Apache Kafka is there and is measured too
    full: bool = False  # a large data directory is really large
    # Ends what sections share, when all are done.
    stack: contextlib.ExitStack = field(default_factory=contextlib.ExitStack)

    @property
    def few(self) -> int:
        """Rounds of what takes long."""
        return 1 if self.quick else min(3, self.rounds)


@contextlib.contextmanager
def data_folder(bench: Bench) -> Iterator[Path]:
    """A folder for a broker's data, gone at the end."""
    with tempfile.TemporaryDirectory(
        prefix="tidelog-bench-", dir=bench.data, ignore_cleanup_errors=True
    ) as parent:
        yield Path(parent) / "data"


@contextlib.contextmanager
def running_broker(bench: Bench, settings: Mapping[str, Any]) -> Iterator[LocalBroker]:
    """A broker with its data in a temporary folder; killed at the end, nothing is kept."""
    with data_folder(bench) as data:
        broker = LocalBroker(settings, data=data)
        try:
            yield broker.start()
        finally:
            broker.kill()


def cpu_seconds(pid: int) -> float:
    """User and system time of a process so far, all its threads."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS


def memory_kib(pid: int, name: str = "VmRSS") -> int:
    """A line of /proc/PID/status: VmRSS, or RssAnon (without mapped files)."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(name + ":"):
            return int(line.split()[1])
    raise RuntimeError(f"/proc/{pid}/status has no {name}")


def bytes_from_disk(pid: int) -> int:
    """What a process has caused to be read from storage so far."""
    for line in Path(f"/proc/{pid}/io").read_text().splitlines():
        if line.startswith("read_bytes:"):
            return int(line.split()[1])
    raise RuntimeError(f"/proc/{pid}/io has no read_bytes")


def drop_caches() -> bool:
    """Forget cached files, where we may."""
    os.sync()
    try:
        Path("/proc/sys/vm/drop_caches").write_text("3\n")
    except OSError:
        return False
    return True


def allow_descriptors(wanted: int) -> int:
    """Raise our own limit; returns how many there may be."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < wanted:
        soft = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    return soft


def describe_machine(bench: Bench, command: str) -> list[tuple[str, str]]:
    """What the figures belong to."""
    model = platform.machine()
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                model = line.partition(":")[2].strip()
                break
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    build = "shared library" if sysconfig.get_config_var("Py_ENABLE_SHARED") else "static"
    if "--enable-optimizations" in (sysconfig.get_config_var("CONFIG_ARGS") or ""):
        build += ", optimised (PGO)"
    data = bench.data or tempfile.gettempdir()
    kafka = "not measured"
    if bench.kafka:
        kafka = f"{VERSION}, combined KRaft node, 1 GB heap, {java_version()}"
    return [
        ("machine", f"{os.cpu_count()} cores, {model}, {memory:.0f} GiB, {platform.release()}"),
        ("python", f"{platform.python_version()}, {build}, tidelog {tidelog.__version__}"),
        ("Apache Kafka", kafka),
        ("data", f"temporary files on {_file_system(data)}"),
        ("date", time.strftime("%Y-%m-%d %H:%M")),
        ("command", command),
    ]


def _file_system(path: str) -> str:
    best, kind = "", "unknown"
    real = os.path.realpath(path)
    with contextlib.suppress(OSError):
        for line in Path("/proc/mounts").read_text().splitlines():
            _, mount, name, *_ = line.split()
            if len(mount) >= len(best) and (real + "/").startswith(mount.rstrip("/") + "/"):
                best, kind = mount, name
    return kind
