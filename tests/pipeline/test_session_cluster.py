"""The same session on a real Spark cluster, whose Python knows nothing of tidelog."""

from __future__ import annotations

import os
import subprocess
import textwrap
from pathlib import Path

import pytest
from pipeline.spark_cluster import bare_python, spark_cluster

import tidelog

SOURCE = Path(tidelog.__file__).parent.parent


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory):
    folder = tmp_path_factory.mktemp("spark")
    with spark_cluster(folder) as master:
        yield master, folder


# The driver finds tidelog by itself, and hands nobody a path.
START = """
    import sys
    sys.path.insert(0, SOURCE)
    import tidelog.pipeline
    def session():
        settings = {"spark.pyspark.python": sys.executable, "spark.executor.memory": "512m"}
        return tidelog.pipeline.session(master=MASTER, settings=settings)
"""


def drive(
    cluster, python: Path, script: str, start: str = START
) -> subprocess.CompletedProcess[str]:
    """Run a driver."""
    master, folder = cluster
    names = f"SOURCE, MASTER = {str(SOURCE)!r}, {master!r}\n"
    return subprocess.run(
        [python, "-c", names + textwrap.dedent(start) + textwrap.dedent(script)],
        capture_output=True,
        text=True,
        cwd=folder,
        env={name: value for name, value in os.environ.items() if name != "PYTHONPATH"},
    )


@pytest.mark.timeout(400)  # four JVMs and a few Python processes start
def test_the_package_is_sent_to_executors(cluster, tmp_path: Path) -> None:
    python = bare_python(tmp_path / "bare")
    alone = drive(cluster, python, "", start="import pyarrow, tidelog")
    assert "No module named 'tidelog'" in alone.stderr
    script = """
        def look(_):
            import sys, tidelog.client.cluster, pyspark_tidelog
            return [sys.executable, tidelog.__file__, pyspark_tidelog.__file__]
        for path in session().sparkContext.parallelize([0], 1).mapPartitions(look).collect():
            print(path)
    """
    done = drive(cluster, python, script)
    assert done.returncode == 0, done.stderr
    executable, *modules = done.stdout.split()
    work = cluster[1] / "work"
    assert executable == str(python)
    assert all(Path(path).is_relative_to(work) for path in modules), modules
    assert done.stderr == ""
