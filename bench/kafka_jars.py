"""Apache Kafka's jars, brought by Maven once into the ignored ``.cache/kafka``."""

from __future__ import annotations

import os
import shutil
import subprocess
from functools import cache
from pathlib import Path

VERSION = os.environ.get("BENCH_KAFKA_VERSION", "4.1.1")
CACHE = Path(__file__).resolve().parent.parent / ".cache" / "kafka"
_TIMEOUT = 300  # a slow registry; the jars are 55 MB

_POM = """\
<project>
  <modelVersion>4.0.0</modelVersion>
  <groupId>tidelog.bench</groupId>
  <artifactId>kafka</artifactId>
  <version>1</version>
  <packaging>pom</packaging>
  <dependencies>
    <dependency>
      <groupId>org.apache.kafka</groupId>
      <artifactId>kafka_2.13</artifactId>
      <version>{version}</version>
    </dependency>
    <dependency>
      <groupId>org.apache.kafka</groupId>
      <artifactId>kafka-tools</artifactId>
      <version>{version}</version>
    </dependency>
    <dependency>
      <groupId>org.slf4j</groupId>
      <artifactId>slf4j-simple</artifactId>
      <version>1.7.36</version>
    </dependency>
  </dependencies>
</project>
"""


class NoKafka(Exception):
    """Kafka cannot be had here; the message says what is missing."""


@cache
def jars() -> Path:
    """The folder with the jars; raises ``NoKafka``."""
    java()
    folder = CACHE / f"jars-{VERSION}"
    if folder.is_dir():
        return folder
    return bring("Kafka's jars", _POM.format(version=VERSION), folder, "kafka_2.13-*.jar")


def bring(what: str, pom: str, folder: Path, proof: str, *options: str) -> Path:
    """Have Maven copy what a POM depends on into a new folder; raises ``NoKafka``.

    ``proof`` is a file without which it is not what was wanted.
    """
    if not shutil.which("mvn"):
        raise NoKafka(f"Maven (mvn) is not installed, it brings {what}")
    folder.parent.mkdir(parents=True, exist_ok=True)
    path = folder.with_name("pom.xml")
    path.write_text(pom)
    partial = folder.with_name(f"partial-{folder.name}")
    shutil.rmtree(partial, ignore_errors=True)
    command = ["mvn", "-q", "-B", "-f", str(path), "dependency:copy-dependencies"]
    command += [f"-DoutputDirectory={partial}", "-DincludeScope=runtime", *options]
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_TIMEOUT,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise NoKafka(f"Maven did not bring {what} in {_TIMEOUT} s") from error
    if done.returncode or not any(partial.glob(proof)):
        said = (done.stdout + done.stderr).strip().splitlines()
        raise NoKafka(f"Maven could not bring {what}: {said[0] if said else 'no reason'}")
    partial.rename(folder)
    return folder


@cache
def java() -> str:
    """The Java that runs it, by name; raises ``NoKafka``."""
    found = shutil.which("java")
    if not found:
        raise NoKafka("Java is not installed (17 or newer)")
    return found


@cache
def java_version() -> str:
    done = subprocess.run([java(), "-version"], capture_output=True, text=True, check=False)
    lines = done.stderr.splitlines()
    return lines[0] if lines else "unknown"


def java_command(main_class: str, *options: str) -> list[str]:
    """``java OPTIONS -cp ... MAIN``, to be followed by arguments."""
    quiet = ["-Dorg.slf4j.simpleLogger.defaultLogLevel=warn", "-Djava.awt.headless=true"]
    return [java(), *options, *quiet, "-cp", f"{jars()}/*", main_class]
