"""A real standalone Spark cluster on this machine: a master and a worker, from PySpark's wheel."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from tidelog import java


@contextlib.contextmanager
def spark_cluster(folder: Path) -> Iterator[str]:
    """The address of a master; the worker's files are in ``folder / "work"``."""
    with contextlib.ExitStack() as stack:
        master = stack.enter_context(
            _process(
                folder,
                "org.apache.spark.deploy.master.Master",
                *("--host", "127.0.0.1", "--port", "0", "--webui-port", "0"),
            )
        )
        address = _wait_for(master, r"Starting Spark master at (spark://\S+)")
        worker = stack.enter_context(
            _process(
                folder,
                "org.apache.spark.deploy.worker.Worker",
                *("--host", "127.0.0.1", "--webui-port", "0", "--cores", "1", "--memory", "1g"),
                *("--work-dir", str(folder / "work"), address),
            )
        )
        _wait_for(worker, r"(Successfully registered with master)")
        yield address


@contextlib.contextmanager
def _process(folder: Path, main: str, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    log4j = folder / "cluster-log4j2.properties"
    log4j.write_text(
        "rootLogger.level = info\nrootLogger.appenderRef.c.ref = c\n"
        "appender.c.type = Console\nappender.c.name = c\n"
        "appender.c.layout.type = PatternLayout\nappender.c.layout.pattern = %m%n\n"
    )
    process = subprocess.Popen(
        [java.jar_folder().parent / "bin" / "spark-class", main, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        # Nothing of ours is on the worker's path.
        env={
            **{name: value for name, value in os.environ.items() if name != "PYTHONPATH"},
            "JAVA_HOME": str(java.find().spark_home()),
            "SPARK_DAEMON_JAVA_OPTS": (
                f"-Dlog4j2.configurationFile={log4j.as_uri()} "
                "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
            ),
            "SPARK_LOCAL_DIRS": str(folder / "local"),
        },
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


def _wait_for(process: subprocess.Popen[str], pattern: str) -> str:
    said = []
    out: IO[str] | None = process.stdout
    assert out is not None
    for line in out:
        said.append(line)
        if found := re.search(pattern, line):
            return found[1]
    raise AssertionError("".join(said))


def bare_python(folder: Path) -> Path:
    """A Python that has every package of this one but tidelog."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    packages = folder / "lib" / version / "site-packages"
    # tidelog is installed as a link, in a .pth file; such a file in a folder that is itself
    # named in one is not read.
    (packages / "others.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return folder / "bin" / "python"
