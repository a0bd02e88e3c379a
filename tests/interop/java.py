"""Kafka's Java clients, tools and servers of several versions, from Maven.

The poms in ``java`` say what each consists of: ``kafka-4.1``, the newest Kafka (``kafka-4.3``, with
Streams, Connect and MirrorMaker), the newest client (``clients-4.4``) and ``kafka-3.9``.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

from interop.building import HERE, build, run_build, run_fetch

_FOLDER = HERE / "java"
_QUIET = "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn"
# Fetch sessions are nowhere to be seen but in the client's own log.
_SESSIONS = "-Dorg.slf4j.simpleLogger.log.org.apache.kafka.clients.FetchSessionHandler=debug"
NEWEST = "kafka-4.3"
WITH_TOOLS = ("kafka-4.1", NEWEST)
WITH_CLIENTS = ("kafka-4.1", "clients-4.4")
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


def driver_command(libraries: str = "kafka-4.1") -> list[str | Path]:
    """The driver in ``java/driver``, compiled against the jars of one of the poms."""
    return _compiled("driver", libraries, "Driver", _SESSIONS)


def group_command(libraries: str = "kafka-4.1") -> list[str | Path]:
    """A member of a consumer group; see ``groups.py``."""
    return _compiled("driver", libraries, "GroupMember")


def streams_command() -> list[str | Path]:
    """An instance of the Streams application in ``java/streams``."""
    return _compiled("streams", NEWEST, "Seen")


def _compiled(folder: str, libraries: str, main: str, *options: str) -> list[str | Path]:
    sources = sorted((_FOLDER / folder).glob("*.java"))
    path = jars(libraries)

    def compile_(classes: Path) -> None:
        run_build("javac", "-nowarn", "-cp", path, "-d", classes, *sources)

    pom = _FOLDER / libraries / "pom.xml"
    classes = build(f"java-{folder}-{libraries}", [*sources, pom], compile_)
    return java(*options, "-cp", f"{classes}:{path}", main)


def tool(
    name: str, *arguments: str | Path, data: str = "", code: int = 0, libraries: str = "kafka-4.1"
) -> str:
    """Run a command-line tool of Kafka by its class; returns all that it prints."""
    done = subprocess.run(
        [*java("-cp", jars(libraries), name), *map(str, arguments)],
        input=data,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == code, done.stdout
    return done.stdout


def dump_log(libraries: str, *arguments: str | Path) -> str:
    """kafka-dump-log, whose class has moved."""
    package = "kafka.tools" if libraries == "kafka-4.1" else "org.apache.kafka.tools"
    return tool(f"{package}.DumpLogSegments", *arguments, libraries=libraries)
