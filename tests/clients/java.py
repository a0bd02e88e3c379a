"""Kafka's Java client and tools, and Kafka 3.9 itself, from Maven."""

from __future__ import annotations

import subprocess
from pathlib import Path

from clients.building import HERE, build, run_build, run_fetch

_FOLDER = HERE / "java"
_QUIET = "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn"
# Fetch sessions are nowhere to be seen but in the client's own log.
_SESSIONS = "-Dorg.slf4j.simpleLogger.log.org.apache.kafka.clients.FetchSessionHandler=debug"
# Many short calls and two cores: a quick start matters more than a quick end.
_SMALL = ("-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto")


def jars(name: str) -> str:
    """A class path for one of the poms, fetched once."""
    pom = _FOLDER / name / "pom.xml"

    def fetch(folder: Path) -> None:
        goal = "org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy-dependencies"
        run_fetch("mvn", "-B", "-q", "-f", pom, goal, f"-DoutputDirectory={folder}")

    return f"{build(name, [pom], fetch)}/*"


def java(*arguments: str | Path) -> list[str | Path]:
    return ["java", *_SMALL, _QUIET, *arguments]


def driver_command() -> list[str | Path]:
    """The driver in ``java/driver``, compiled."""
    return _compiled("Driver")


def group_command() -> list[str | Path]:
    """A member of a consumer group; see ``groups.py``."""
    return _compiled("GroupMember")


def _compiled(main: str) -> list[str | Path]:
    sources = sorted((_FOLDER / "driver").glob("*.java"))
    libraries = jars("kafka-4.1")

    def compile_(folder: Path) -> None:
        run_build("javac", "-nowarn", "-cp", libraries, "-d", folder, *sources)

    classes = build("java-driver", [*sources, _FOLDER / "kafka-4.1" / "pom.xml"], compile_)
    return java(_SESSIONS, "-cp", f"{classes}:{libraries}", main)


def tool(name: str, *arguments: str | Path, data: str = "", code: int = 0) -> str:
    """Run a command-line tool of Kafka 4.1 by its class; returns all that it prints."""
    done = subprocess.run(
        [*java("-cp", jars("kafka-4.1"), name), *map(str, arguments)],
        input=data,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == code, done.stdout
    return done.stdout
