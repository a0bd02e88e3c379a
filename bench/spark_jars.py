"""Spark's own Kafka connector, brought by Maven once into the ignored ``.cache/spark``.

The one of PySpark's version, with what it depends on, if the repository has it.  Not every
repository has every part of every version; then it is an earlier one from parts that are
known to work together, and the captions say which.
"""

from __future__ import annotations

import importlib.metadata
from functools import cache
from pathlib import Path

from bench.kafka_jars import CACHE, NoKafka, bring

FOLDER = CACHE.with_name("spark")
_CONNECTOR = "spark-sql-kafka-0-10_2.13"
_TOKENS = "spark-token-provider-kafka-0-10_2.13"
_EARLIER = {  # without what they depend on: Spark itself has that
    ("org.apache.spark", _CONNECTOR): "4.2.0",
    ("org.apache.spark", _TOKENS): "4.1.0-preview1",
    ("org.apache.kafka", "kafka-clients"): "3.9.2",
    ("org.apache.commons", "commons-pool2"): "2.13.1",
}
_PROJECT = """\
<project>
  <modelVersion>4.0.0</modelVersion>
  <groupId>tidelog.bench</groupId>
  <artifactId>spark</artifactId>
  <version>1</version>
  <packaging>pom</packaging>
  <dependencies>
{dependencies}
  </dependencies>
</project>
"""
_DEPENDENCY = """\
    <dependency>
      <groupId>{group}</groupId>
      <artifactId>{artifact}</artifactId>
      <version>{version}</version>{more}
    </dependency>"""
_ALONE = """
      <exclusions>
        <exclusion>
          <groupId>*</groupId>
          <artifactId>*</artifactId>
        </exclusion>
      </exclusions>"""


@cache
def connector() -> list[Path]:
    """The jars that a session needs; raises ``NoKafka``."""
    same = importlib.metadata.version("pyspark")
    earlier = _EARLIER["org.apache.spark", _CONNECTOR]
    for version in (same, earlier):
        folder = FOLDER / f"jars-{version}"
        if folder.is_dir():
            return sorted(folder.glob("*.jar"))
    try:
        folder = _of_version(same)
    except NoKafka:
        folder = _from_parts(earlier)
    return sorted(folder.glob("*.jar"))


def connector_version() -> str:
    """For captions."""
    (name,) = [jar.stem for jar in connector() if jar.name.startswith(_CONNECTOR)]
    return name.removeprefix(_CONNECTOR + "-")


def _of_version(version: str) -> Path:
    wanted = ",".join(artifact for _, artifact in _EARLIER)
    row = _DEPENDENCY.format(
        group="org.apache.spark", artifact=_CONNECTOR, version=version, more=""
    )
    return _bring(version, [row], f"-DincludeArtifactIds={wanted}")


def _from_parts(version: str) -> Path:
    rows = [
        _DEPENDENCY.format(group=group, artifact=artifact, version=each, more=_ALONE)
        for (group, artifact), each in _EARLIER.items()
    ]
    return _bring(version, rows)


def _bring(version: str, dependencies: list[str], *options: str) -> Path:
    pom = _PROJECT.format(dependencies="\n".join(dependencies))
    folder = FOLDER / f"jars-{version}"
    return bring("Spark's Kafka connector", pom, folder, f"{_CONNECTOR}-*.jar", *options)
