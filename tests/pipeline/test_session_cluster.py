"""The same session on a real Spark cluster, whose Python knows nothing of tidelog."""

from __future__ import annotations

import os
import subprocess
import textwrap
from pathlib import Path

import pytest
from pipeline.lake.checking import check
from pipeline.spark_cluster import bare_python, spark_cluster
from support.cli import run
from support.filling import fill

import tidelog
from tidelog.testing import LocalBroker

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


@pytest.mark.slow
@pytest.mark.timeout(600)  # four JVMs and a few Python processes start
def test_the_package_is_sent_to_executors_and_works_there(
    cluster, broker: LocalBroker, topic: str, tmp_path: Path
) -> None:
    fill(broker.bootstrap, topic, [f"v{number}" for number in range(100)], partitions=2)
    python = bare_python(tmp_path / "bare")
    alone = drive(cluster, python, "", start="import pyarrow, tidelog")
    assert "No module named 'tidelog'" in alone.stderr
    lake = tmp_path / "lake"
    script = f"""
        bootstrap, topic, lake = {broker.bootstrap!r}, {topic!r}, {str(lake)!r}
        def look(_):
            import sys, tidelog.client.cluster, pyspark_tidelog
            return [sys.executable, tidelog.__file__, pyspark_tidelog.__file__]
        spark = session()
        for path in spark.sparkContext.parallelize([0], 1).mapPartitions(look).collect():
            print(path)
        servers = {{"kafka.bootstrap.servers": bootstrap}}
        source = spark.read.format("tidelog").options(**servers, subscribe=topic).load()
        copy = source.select("key", "value").write.format("tidelog").options(**servers)
        copy.option("topic", topic + "-copy").mode("append").save()
        stream = spark.readStream.format("tidelog").options(**servers, subscribe=topic)
        stream = stream.option("startingOffsets", "earliest").load().select("key", "value")
        stream = stream.writeStream.format("tidelog").options(**servers, topic=topic + "-stream")
        stream = stream.option("checkpointLocation", lake + "-checkpoint")
        stream.trigger(availableNow=True).start().awaitTermination()
        print(tidelog.pipeline.load(topic, lake, bootstrap=bootstrap, spark=spark).rows)
        print(tidelog.pipeline.read_lake(spark, lake, live=True).count())
    """
    done = drive(cluster, python, script)
    assert done.returncode == 0, done.stderr
    executable, *modules, loaded, read = done.stdout.split()
    work = cluster[1] / "work"
    assert executable == str(python)
    assert all(Path(path).is_relative_to(work) for path in modules), modules
    assert done.stderr == ""
    assert (loaded, read) == ("100", "100")
    assert check(lake, broker.bootstrap, topic) == 100
    for name in (f"{topic}-copy", f"{topic}-stream"):
        shown = run("consume", name, "--from", "start", "--exit", bootstrap=broker.bootstrap)
        assert sorted(shown.lines) == sorted(f"v{number}" for number in range(100))
