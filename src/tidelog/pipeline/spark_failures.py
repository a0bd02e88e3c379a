"""The causes of Spark's failures, where its own message is of no help.

When Spark's JVM has ended, the next call to it gets "Connection refused"; when its workers
run another Python, Spark knows no format ``tidelog``.
"""

from __future__ import annotations

import collections
import contextlib
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tidelog.errors import ApiError, ErrorCode

_OUT_OF_MEMORY = 52  # the exit code, says Spark
_LINES = 20
_END_SECONDS = 10.0

# The last lines of the JVM that our session has started.
jvm_output: collections.deque[str] = collections.deque(maxlen=_LINES)


class SparkFailure(ApiError):
    """Spark cannot go on; the message is a sentence for people."""

    def __init__(self, message: str) -> None:
        super().__init__(ErrorCode.UNKNOWN_SERVER_ERROR, message)


@contextlib.contextmanager
def explained() -> Iterator[None]:
    """Raise ``SparkFailure`` in place of what Spark's end, or a wrong Python, leads to."""
    try:
        yield
    except Exception as error:
        why = reason(error)
        if why is None:
            raise
        raise SparkFailure(why) from error


def reason(error: BaseException) -> str | None:
    """What it really was; None if that is not known here."""
    return jvm_end(error) or _other_python(str(error))


def jvm_end(error: BaseException | None = None) -> str | None:
    """Why Spark's JVM has ended; None if it runs, or if there was none."""
    if "pyspark" not in sys.modules:
        return None
    from py4j.protocol import Py4JError, Py4JJavaError
    from pyspark import SparkContext

    gateway = SparkContext._gateway
    if gateway is None:
        return None
    process = getattr(gateway, "proc", None)
    # A connection that failed further down the causes may be one to a broker.
    cut_off = isinstance(error, ConnectionError | EOFError)
    while error is not None and not cut_off:
        # Not what Java itself has answered.
        cut_off = isinstance(error, Py4JError) and not isinstance(error, Py4JJavaError)
        error = error.__cause__
    if process is None:  # spark-submit has started it
        return "Spark's JVM has ended: see what spark-submit has logged" if cut_off else None
    if cut_off or _out_of_memory():  # it is ending, if it has not ended
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_END_SECONDS)
    code = process.poll()
    return None if code is None else _end_text(process.pid, code)


def _end_text(pid: int, code: int) -> str:
    who = f"Spark's JVM (process {pid})"
    if code == _OUT_OF_MEMORY or _out_of_memory():
        return (
            f"{who} ran out of memory (exit code {code}): give it more with the setting "
            "spark.driver.memory, as --conf spark.driver.memory=4g"
        )
    if code == -signal.SIGKILL:
        return (
            f"{who} was killed (SIGKILL), as the kernel does when the machine is out of memory: "
            "`dmesg` tells"
        )
    text = f"{who} ended with exit code {code}"
    if code < 0:
        text = f"{who} was ended by {signal.Signals(-code).name}"
    report = Path(f"hs_err_pid{pid}.log")
    if report.exists():
        return f"{text}; its report is {report.absolute()}"
    said = [line.strip() for line in jvm_output if line.strip()]
    return f"{text}; it said last: {said[-1]}" if said else text


def _out_of_memory() -> bool:
    return any("java.lang.OutOfMemoryError" in line for line in list(jvm_output))


def _other_python(text: str) -> str | None:
    no_format = "DATA_SOURCE_NOT_FOUND" in text and "tidelog" in text
    if not no_format and "No module named 'tidelog" not in text:
        return None
    return (
        "Spark starts a Python for its workers that has no tidelog: set "
        f"PYSPARK_PYTHON={sys.executable} before the session is made, or make it with "
        "tidelog.pipeline.session()"
    )


def is_connect(spark: Any) -> bool:
    """Whether a session is one of Spark Connect, which has no JVM here."""
    return type(spark).__module__.startswith("pyspark.sql.connect")
