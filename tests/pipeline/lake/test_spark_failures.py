"""What is said when Spark, its Python or a disk fails a load."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.mounting import mounted

from tidelog.pipeline.lake.files import LakeError, LocalFiles
from tidelog.pipeline.lake.load import load
from tidelog.pipeline.spark_failures import _end_text, jvm_output, reason
from tidelog.testing import LocalBroker

__all__ = ["mounted"]

# A session that is not ours, and that nobody has told which Python to start.
PROGRAM = """
import json, os, signal, sys
from pyspark.sql import SparkSession
import tidelog.pipeline as tp
topic, lake, bootstrap = sys.argv[1:]
os.environ.pop("PYSPARK_PYTHON", None)
builder = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
spark = builder.getOrCreate()
def tried(work, *args, **options):
    try:
        return f"no error: {work(*args, **options)}"
    except Exception as error:
        return f"{type(error).__name__}: {error}"
told = [tried(tp.load, topic, lake, bootstrap=bootstrap, spark=spark)]
told.append(tried(tp.load, topic, lake, bootstrap=bootstrap, spark=spark, continuous=True))
java = spark.sparkContext._gateway.proc.pid
os.kill(java, signal.SIGKILL)
told.append(tried(tp.load, topic, lake, bootstrap=bootstrap, spark=spark))
told.append(tried(tp.session))
print(json.dumps([java, *told]))
"""


@pytest.mark.slow
def test_another_python_and_a_jvm_that_was_killed(
    broker: LocalBroker, filled: Callable[..., str], tmp_path: Path
) -> None:
    tools = tmp_path / "bin"
    tools.mkdir()
    (tools / "python3").symlink_to(Path(sys.base_prefix) / "bin" / "python3")  # has no tidelog
    path = os.pathsep.join([str(tools), os.environ["PATH"]])
    without = {
        key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "JAVA_HOME")
    }
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, filled(["a"]), str(tmp_path / "lake"), broker.bootstrap],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={**without, "PATH": path},
    )
    assert done.returncode == 0, done.stderr
    java, *told = json.loads(done.stdout)
    python = (
        "SparkFailure: Spark starts a Python for its workers that has no tidelog: set "
        f"PYSPARK_PYTHON={sys.executable} before the session is made, or make it with "
        "tidelog.pipeline.session()"
    )
    killed = (
        f"Spark's JVM (process {java}) was killed (SIGKILL), as the kernel does when the machine "
        "is out of memory: `dmesg` tells"
    )
    assert told == [
        python,
        python,
        f"SparkFailure: {killed}",
        f"RuntimeError: {killed}; a new one needs a new Python",
    ]
    assert not list(tmp_path.rglob("*.parquet")), "a load that failed has left files"


def test_how_a_jvm_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    before = list(jvm_output)
    jvm_output.clear()
    try:
        assert _end_text(7, 1) == "Spark's JVM (process 7) ended with exit code 1"
        jvm_output.extend(["12:00:00 ERROR Some: thing\n", "\n"])
        assert _end_text(7, 1).endswith("; it said last: 12:00:00 ERROR Some: thing")
        assert "ran out of memory (exit code 52)" in _end_text(7, 52)
        jvm_output.append("java.lang.OutOfMemoryError: Java heap space\n")
        assert "ran out of memory (exit code 1)" in _end_text(7, 1)
        jvm_output.clear()
        Path("hs_err_pid7.log").touch()
        assert _end_text(7, -11) == (
            "Spark's JVM (process 7) was ended by SIGSEGV; its report is "
            f"{tmp_path / 'hs_err_pid7.log'}"
        )
    finally:
        jvm_output.extend(before)
    assert reason(ValueError("of a user")) is None


def test_loads_over_spark_connect_are_refused(tmp_path: Path, broker: LocalBroker) -> None:
    remote = type("SparkSession", (), {"__module__": "pyspark.sql.connect.session"})()
    with pytest.raises(LakeError, match="loads over Spark Connect are not supported"):
        load("t", tmp_path / "lake", bootstrap=broker.bootstrap, spark=remote)


def test_a_full_disk_is_named(
    filled: Callable[..., str], loads: Callable[..., Any], mounted: Any
) -> None:
    disk = mounted("-t", "tmpfs", "-o", "size=300k", "tidelog-test")
    topic = filled([os.urandom(10_000) for _ in range(100)])
    with pytest.raises(LakeError, match=rf"^{disk}/lake/_tidelog/staging/.*: No space left on dev"):
        loads(topic, disk / "lake")
    assert not list(disk.rglob("*.parquet"))
    (disk / "filler").write_bytes(bytes(200_000))
    with pytest.raises(LakeError, match=rf"^{disk}/x: No space left on device"):
        LocalFiles(disk).create("x", bytes(200_000))
    assert [path.name for path in disk.iterdir()] == ["filler"]
