"""Spark sessions: the one place where they are made.

    spark = tidelog.pipeline.session()
    spark = tidelog.pipeline.session(master="spark://host:7077", settings={"spark.cores.max": 8})

What it sets and why stands in ``_defaults``, in order of strength: what the caller gives in
``settings``, what ``spark-submit`` or ``spark-defaults.conf`` say, and last what we find best.
Java comes from :mod:`tidelog.java`.  Spark's noise is kept away: log lines below errors, and
what the JVM itself says at start.  Whatever a session writes for itself is in one temporary
folder that goes when Python ends; nothing is left in the folder in which the user works.

On a cluster (``master`` is not ``local``) executors get the packages ``tidelog`` and
``pyspark_tidelog`` from here, unpacked into the folder that Spark puts on every worker's path.
What tidelog itself needs (pyarrow, numba and so on: compiled, so not to be sent) must be
installed there; a first small job checks that, and says what is missing on which host.
"""

from __future__ import annotations

import atexit
import contextlib
import importlib.util
import logging
import os
import re
import shutil
import sys
import tempfile
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from tidelog.java import NotInstalled, spark_extra
from tidelog.pipeline import spark_failures

if importlib.util.find_spec("pyspark") is None:
    raise NotInstalled(f"this needs PySpark: {spark_extra()}")

import pyspark
from pyspark import SparkConf, SparkContext
from pyspark.logger import PySparkLogger
from pyspark.sql import SparkSession

from tidelog.pipeline.jvm import QUIET_LEVELS, end_java, log_option, poll_in_py4j, start_java

_OLDEST = (4, 2)  # the first that asks a source in Python how far a batch shall go
if tuple(map(int, pyspark.__version__.split(".")[:2])) < _OLDEST:
    raise NotInstalled(
        f"this needs PySpark {'.'.join(map(str, _OLDEST))} or newer, and this is "
        f"{pyspark.__version__}: {spark_extra('--upgrade ')}"
    )

_GIB = 1 << 30
_MODULES = ("tidelog", "pyspark_tidelog")
# What a task imports; the right side is what pip calls it.
_NEEDED = {
    "confluent_kafka": "confluent-kafka",
    "cramjam": "cramjam",
    "crc32c": "crc32c",
    "numba": "numba",
    "pyarrow": "pyarrow",
}
# PySpark writes every exception of a query with both stacks, and then raises it.
_REPEATING = ("DataFrameQueryContextLogger", "SQLQueryContextLogger")
_LEVELS = (*QUIET_LEVELS, "INFO", "DEBUG", "TRACE", "ALL")


def session(
    name: str = "tidelog",
    *,
    master: str | None = None,
    cores: int | None = None,
    settings: Mapping[str, Any] | None = None,
    log_level: str = "error",
    ui: bool = False,
) -> SparkSession:
    """A Spark session that is set up for tidelog; the one that runs already, if there is one.

    ``master``   where it runs, as in ``spark-submit --master``; here if not said
    ``cores``    how many tasks at a time, when it runs here; all cores if not said
    ``settings`` Spark's own, by name; they win over everything
    ``log_level`` from ``off`` to ``trace``; from ``info`` on nothing is held back
    ``ui``       whether Spark's web pages are served
    """
    wanted = {key: _text(value) for key, value in (settings or {}).items()}
    _check(master, cores, wanted, log_level)
    if SparkContext._active_spark_context is not None:
        ended = spark_failures.jvm_end()
        if ended is not None:
            raise RuntimeError(f"{ended}; a new one needs a new Python")
        return _again(wanted)
    folder = _Folder()
    given = {**_site_settings(), **wanted}
    if master is not None:
        given["spark.master"] = master
    submitted = "PYSPARK_GATEWAY_PORT" in os.environ
    if submitted:
        SparkContext._ensure_initialized()
        given = {**dict(SparkConf().getAll()), **given}
    given = {**_defaults(name, given.get("spark.master"), cores, ui, folder.path), **given}
    local = given["spark.master"].startswith("local")
    if SparkContext._gateway is None:  # otherwise a JVM is there, of a session that was stopped
        _choose_python(given, local)
        given["spark.driver.extraJavaOptions"] = " ".join(
            [log_option(folder.path, log_level), given.get("spark.driver.extraJavaOptions", "")]
        ).strip()
        with contextlib.nullcontext() if local else _for_planners(folder.path):
            start_java(given, log_level)
    poll_in_py4j()
    conf = SparkConf()
    for key, value in given.items():
        conf.set(key, value)
    SparkContext.getOrCreate(conf)
    spark = SparkSession.builder.getOrCreate()
    if log_level.upper() in QUIET_LEVELS:
        for logger in _REPEATING:
            PySparkLogger.getLogger(logger).setLevel(logging.CRITICAL + 1)
    folder.remove_after_java()
    if not local:
        _ship(spark, folder.path)
        _check_executors(spark)
    return spark


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _check(
    master: str | None, cores: int | None, settings: Mapping[str, str], log_level: str
) -> None:
    server = master or os.environ.get("SPARK_REMOTE", "")
    if server.startswith("sc:"):
        raise ValueError(
            f"{'master' if master else 'SPARK_REMOTE'}={server!r} is a Spark Connect server: it "
            "makes its own sessions; use SparkSession.builder.remote(...), with tidelog installed "
            "where the server runs; loads over Spark Connect are not supported"
        )
    if cores is not None and cores < 1:
        raise ValueError(f"cores={cores}: at least 1")
    if cores is not None and master is not None:
        raise ValueError("give cores or master, not both: cores is for a session on this machine")
    if log_level.upper() not in _LEVELS:
        raise ValueError(f"log_level={log_level!r}: one of {', '.join(_LEVELS).lower()}")
    for key in settings:
        if not key.startswith("spark."):
            raise ValueError(f"settings: {key} is none of Spark's, they begin with 'spark.'")


def _again(settings: Mapping[str, str]) -> SparkSession:
    """The session that runs; of the settings, what can still be set."""
    builder = SparkSession.builder
    for key, value in settings.items():
        builder = builder.config(key, value)
    return builder.getOrCreate()


# -- settings -------------------------------------------------------------------


def _defaults(
    name: str, master: str | None, cores: int | None, ui: bool, folder: Path
) -> dict[str, str]:
    count = cores or len(os.sched_getaffinity(0))
    result = {
        "spark.app.name": name,
        # The last number lets a failed task be tried again, as on a cluster.
        "spark.master": master or f"local[{count},4]",
        "spark.ui.enabled": _text(ui),
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.execution.arrow.pyspark.enabled": "true",
        "spark.python.unix.domain.socket.enabled": "true",
        # A day begins for every machine at the same moment.
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.streaming.stateStore.providerClass": (
            "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
        ),
        "spark.sql.streaming.forceDeleteTempCheckpointLocation": "true",
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
    }
    if result["spark.master"].startswith("local"):
        memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        result |= {
            # Names of hosts are not asked for, and no other machine can connect.
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            # As Java does by itself; Spark's own default is 1 GiB on any machine.
            "spark.driver.memory": f"{min(max(memory // 4, _GIB), 8 * _GIB) >> 20}m",
            # Each costs a task in every micro-batch; Spark's default of 200 is for clusters.
            "spark.sql.shuffle.partitions": str(max(count, 2)),
        }
        if "SPARK_LOCAL_DIRS" not in os.environ:
            result["spark.local.dir"] = str(folder / "local")
    return result


def _site_settings() -> dict[str, str]:
    """``spark-defaults.conf``: what it says must not be overridden by what we only prefer."""
    home = os.environ.get("SPARK_HOME")
    folder = os.environ.get("SPARK_CONF_DIR") or (os.path.join(home, "conf") if home else None)
    if folder is None:
        return {}
    try:
        text = Path(folder, "spark-defaults.conf").read_text()
    except OSError:
        return {}
    result = {}
    for line in text.splitlines():
        # As Java reads properties: the first of these ends the name, and more of them are value.
        if found := re.match(r"\s*(spark\.[^\s=:]+)\s*[=:]?\s*(.*?)\s*$", line):
            result[found[1]] = found[2]
    return result


def _choose_python(given: dict[str, str], local: bool) -> None:
    """Spark starts ``python3`` if no setting says which."""
    if local:
        given.setdefault("spark.pyspark.python", sys.executable)
        os.environ["PYSPARK_PYTHON"] = given["spark.pyspark.python"]
        os.environ["PYSPARK_DRIVER_PYTHON"] = given["spark.pyspark.python"]
    elif "spark.pyspark.python" in given:
        # PySpark reads the one, Spark the other.
        os.environ["PYSPARK_PYTHON"] = given["spark.pyspark.python"]


class _Folder:
    """The temporary folder of a session."""

    def __init__(self) -> None:
        self.path = Path(tempfile.mkdtemp(prefix="tidelog-spark-"))
        atexit.register(self._remove)

    def remove_after_java(self) -> None:
        """The JVM deletes its own files when it ends, and must be gone before the folder."""
        atexit.register(end_java, SparkContext._gateway)  # the last one is called first

    def _remove(self) -> None:
        shutil.rmtree(self.path, ignore_errors=True)


# -- a cluster ------------------------------------------------------------------


def _ship(spark: SparkSession, folder: Path) -> None:
    """Send our own packages, each as an archive that unpacks into a folder of its name.

    That folder lies on the path of every Python worker, also of those that Spark starts for a
    data source it found by itself: these do not get the files of ``addPyFile``.
    """
    for name in _MODULES:
        spark.sparkContext.addArchive(f"{_zip(name, folder)}#{name}")


@contextlib.contextmanager
def _for_planners(folder: Path) -> Iterator[None]:
    """The environment of a JVM whose processes that plan streams find our packages.

    They run on this machine, but with the Python of the executors, which need not have
    tidelog, and without the archives.  Only our packages: all else is to be that Python's own.
    """
    path = folder / "packages"
    path.mkdir()
    for name in _MODULES:
        (path / name).symlink_to(_root(name).absolute())
    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join([str(path), *([before] if before else [])])
    try:
        yield
    finally:
        if before is None:
            del os.environ["PYTHONPATH"]
        else:
            os.environ["PYTHONPATH"] = before


def _root(module: str) -> Path:
    spec = importlib.util.find_spec(module)
    if spec is None or not spec.submodule_search_locations:
        raise NotInstalled(f"the package {module} is not installed: pip install tidelog")
    return Path(next(iter(spec.submodule_search_locations)))


def _zip(module: str, folder: Path) -> Path:
    root = _root(module)
    path = folder / f"{module}.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for file in sorted(root.rglob("*")):
            if file.is_file() and "__pycache__" not in file.parts:
                archive.write(file, file.relative_to(root))
    return path


def _check_executors(spark: SparkSession) -> None:
    """One task looks at one executor: what does it lack?"""
    needed = dict(_NEEDED)

    def look(_: Iterable[Any]) -> list[tuple[str, str, list[str]]]:
        import importlib.util
        import socket
        import sys

        missing = [name for name in needed if importlib.util.find_spec(name) is None]
        return [(socket.gethostname(), sys.executable, missing)]

    ((host, python, missing),) = (
        spark.sparkContext.parallelize([0], 1).mapPartitions(look).collect()
    )
    if missing:
        names = " ".join(f'"{needed[name]}"' for name in missing)
        raise NotInstalled(
            f"the executors lack what tidelog needs: {python} on {host} has no "
            f"{', '.join(missing)}; run `{python} -m pip install {names}` on every worker, or "
            "send a Python environment with spark.archives and spark.pyspark.python"
        )
