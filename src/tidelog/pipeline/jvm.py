"""The JVM of a Spark session: its start, what it prints, and its end.

What it prints is passed on without the noise, and the last lines are kept in
``spark_failures.jvm_output``: they explain why a JVM ended.
"""

from __future__ import annotations

import collections
import contextlib
import logging
import os
import select
import sys
import threading
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from pyspark import SparkConf, SparkContext
from pyspark.errors import PySparkRuntimeError
from pyspark.java_gateway import launch_gateway

from tidelog import java
from tidelog.pipeline import spark_failures

# Nothing in these helps a user, or the exception has it too.
_NOISY = (
    "org.apache.hadoop.util.NativeCodeLoader",
    "org.apache.spark.executor.Executor",
    "org.apache.spark.scheduler.TaskSetManager",
    "org.apache.spark.sql.catalyst.util.SparkStringUtils",
    "org.apache.spark.sql.execution.datasources.v2",
    "org.apache.spark.sql.execution.python",
    "org.apache.spark.sql.execution.streaming",
    "org.apache.spark.sql.execution.window.WindowExec",
    "org.apache.spark.util.Utils",
)
QUIET_LEVELS = ("OFF", "FATAL", "ERROR", "WARN")
_END_SECONDS = 30


def log_option(folder: Path, level: str) -> str:
    lines = [
        f"rootLogger.level = {level}",
        "rootLogger.appenderRef.console.ref = console",
        "appender.console.type = Console",
        "appender.console.name = console",
        "appender.console.target = SYSTEM_ERR",
        "appender.console.layout.type = PatternLayout",
        "appender.console.layout.pattern = %d{HH:mm:ss} %p %c{1}: %m%n%ex{short}",
        # Spark gives an interactive Python the level of this one, and says so if it differs.
        "logger.python.name = org.apache.spark.api.python.PythonGatewayServer",
        f"logger.python.level = {level}",
    ]
    if level.upper() in QUIET_LEVELS:
        for number, name in enumerate(_NOISY):
            lines += [f"logger.n{number}.name = {name}", f"logger.n{number}.level = off"]
    path = folder / "log4j2.properties"
    path.write_text("\n".join(lines) + "\n")
    return f'-Dlog4j2.configurationFile="{path.as_uri()}"'


def start_java(given: Mapping[str, str], log_level: str) -> None:
    """Start the JVM with its output read here: noise is dropped, the rest passed on."""
    os.environ["JAVA_HOME"] = str(java.find().spark_home())
    quiet = log_level.upper() in QUIET_LEVELS
    last = spark_failures.jvm_output
    last.clear()
    reading, writing = os.pipe()

    def listen() -> None:
        with os.fdopen(reading, errors="replace") as pipe:
            lines = _remembered(pipe, last)
            for line in without_noise(lines) if quiet else lines:
                with contextlib.suppress(ValueError, OSError):  # it may be closed by now
                    sys.stderr.write(line)

    conf = SparkConf(loadDefaults=False)
    for key, value in given.items():
        conf.set(key, value)
    thread = threading.Thread(target=listen, name="spark-stderr", daemon=True)
    thread.start()
    try:
        gateway = launch_gateway(conf, {"stderr": writing})
    except PySparkRuntimeError as error:
        os.close(writing)
        thread.join()
        said = "".join(last).strip() or "it said nothing"
        raise RuntimeError(f"Spark did not start: {said}") from error
    os.close(writing)
    SparkContext._ensure_initialized(gateway=gateway)


def _remembered(lines: Iterable[str], last: collections.deque[str]) -> Iterator[str]:
    for line in lines:
        last.append(line)
        yield line


def without_noise(lines: Iterable[str]) -> Iterator[str]:
    """Drop the JVM's lines about itself, and the broken pipes of Python workers, when Spark has
    read enough of their rows or has gone.  Several of them may write at once."""
    held: list[str] = []
    stacks = 0
    for line in lines:
        if line.startswith("Traceback (most recent call last)"):
            stacks += 1
            held.append(line)
        elif held and line.startswith("  "):
            held.append(line)
        elif line.startswith("BrokenPipeError") and _of_workers(held):
            stacks -= 1
            if not stacks:
                held.clear()
        else:
            yield from held
            held.clear()
            stacks = 0
            if not line.startswith("WARNING: "):
                yield line
    if len(held) > stacks and not _of_workers(held):  # otherwise its writer was ended
        yield from held


def _of_workers(stacks: Iterable[str]) -> bool:
    return any("pyspark/daemon" in line for line in stacks)


def end_java(gateway: Any) -> None:
    """Stop what still runs in the JVM, and the JVM; once, though each of its sessions asks."""
    process = getattr(gateway, "proc", None)  # none: spark-submit has started it, and ends it
    if process is not None and process.poll() is not None:
        return
    # A thread of py4j notifies the JVM which objects are no longer needed, for as long as Python
    # lives, and when the JVM has gone it writes that to the root logger.
    logging.getLogger().addFilter(lambda record: "py4j" not in record.pathname)
    context = SparkContext._active_spark_context
    with contextlib.suppress(Exception), warnings.catch_warnings():  # it may die just now
        warnings.simplefilter("ignore")
        if context is not None:
            context.stop()
        if process is not None:
            process.stdin.close()
            process.wait(_END_SECONDS)


# -- callbacks ------------------------------------------------------------------


class Polling:
    """As much of the module ``select`` as py4j's callback server uses.

    py4j waits for the JVM's calls (``foreachBatch``, listeners of streams) with ``select()``, which
    takes no descriptor above 1023.  In a process that has more files open than that, its thread
    dies and the call waits for ever.  ``poll()`` has no such limit; PySpark uses it elsewhere.
    """

    @staticmethod
    def select(
        readers: Sequence[Any],
        writers: Sequence[Any],
        errors: Sequence[Any],
        timeout: float | None = None,
    ) -> tuple[list[Any], list[Any], list[Any]]:
        """Those of the readers that can be read, or whose other side is gone."""
        assert not writers and not errors
        poll = select.poll()
        by_descriptor = {reader.fileno(): reader for reader in readers}
        for descriptor in by_descriptor:
            poll.register(descriptor, select.POLLIN)
        found = poll.poll(None if timeout is None else round(timeout * 1000))
        return [by_descriptor[descriptor] for descriptor, _ in found], [], []


def poll_in_py4j() -> None:
    """From now on py4j waits with ``poll()``."""
    import py4j.java_gateway

    if getattr(py4j.java_gateway, "select", None) is select:
        py4j.java_gateway.select = Polling
