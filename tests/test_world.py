"""The world is injected: time, files, random numbers, threads and processes have one module each.

A simulation replaces them (clock, files, ids, workers).  What goes around them would be real in it,
so the source of the broker is searched for what only these modules may use.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import tidelog
from tidelog import files, workers

SOURCE = Path(tidelog.__file__).parent
BROKER = ("broker", "controller", "coordinators", "keeper", "log", "partition", "wire")
# They start and stop processes of other programs, for the tools.
EXEMPT = {"keeper/zookeeper_server.py"}

# Who may import what; modules that are not named here may be imported by all.
OWNERS = {
    "time": {"clock.py"},
    "random": {"ids.py"},
    "secrets": set(),
    "uuid": {"ids.py"},
    "threading": {"workers.py", "log/manager.py"},  # the manager has a lock
    "subprocess": set(),
    "multiprocessing": set(),
    "mmap": {"files.py"},
    "fcntl": {"files.py"},
    "shutil": {"files.py"},
    "tempfile": {"files.py"},
}
# What does no I/O, and what a process may do to itself.
HARMLESS_OS = {"path", "sep", "strerror", "getpid", "nice", "_exit", "cpu_count", "environ"}
HARMLESS_PATH = {"join", "dirname", "basename", "split", "abspath"}
# Built on the operations: they look them up when they are called.
BUILT = {
    *("read_file", "write_all", "write_atomically", "sync_file", "sync_directory", "size"),
    *("modified_ms", "remove", "copy_file"),
}


def modules() -> Iterator[tuple[str, ast.Module]]:
    for folder in BROKER:
        for path in sorted((SOURCE / folder).rglob("*.py")):
            name = str(path.relative_to(SOURCE))
            if name not in EXEMPT:
                yield name, ast.parse(path.read_text())
    for path in sorted(SOURCE.glob("*.py")):
        yield path.name, ast.parse(path.read_text())


def for_types_only(tree: ast.Module) -> set[int]:
    """The imports below ``if TYPE_CHECKING``."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            found |= {id(inner) for inner in ast.walk(node)}
    return found


def imports(tree: ast.Module) -> Iterator[tuple[str, str, int]]:
    """Module, name (or nothing) and line of what is imported."""
    ignored = for_types_only(tree)
    for node in ast.walk(tree):
        if id(node) in ignored:
            continue
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.name.partition(".")[0], "", node.lineno
        elif isinstance(node, ast.ImportFrom) and not node.level:
            for alias in node.names:
                yield node.module or "", alias.name, node.lineno


SOURCES = dict(modules())


@pytest.mark.parametrize("module", OWNERS)
def test_one_module_imports_it(module: str) -> None:
    found = {
        f"{name}:{line}"
        for name, tree in SOURCES.items()
        if name not in OWNERS[module] and name != "java.py"
        for imported, _, line in imports(tree)
        if imported == module
    }
    assert not found, f"{module} is imported by {sorted(found)}"


def test_operations_are_looked_up_when_they_are_called() -> None:
    """Imported by name they would stay what they were when a simulation replaces them."""
    replaced = {"tidelog.files": set(files.OPERATIONS), "tidelog.workers": set(workers.OPERATIONS)}
    found = {
        f"{file}:{line} {name}"
        for file, tree in SOURCES.items()
        for module, name, line in imports(tree)
        if name in replaced.get(module, ())
    }
    assert not found


def forbidden(tree: ast.Module) -> Iterator[tuple[str, int]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            name = f"{node.value.id}.{node.attr}"
            if node.value.id == "os" and node.attr not in HARMLESS_OS:
                if not node.attr.startswith("O_"):
                    yield name, node.lineno
            elif name in ("asyncio.to_thread", "asyncio.create_subprocess_exec"):
                yield name, node.lineno
        elif isinstance(node, ast.Attribute) and ast.unparse(node.value) == "os.path":
            if node.attr not in HARMLESS_PATH:
                yield f"os.path.{node.attr}", node.lineno
        elif isinstance(node, ast.Call) and ast.unparse(node.func) in (
            "open",
            "ThreadPoolExecutor",
        ):
            yield ast.unparse(node.func), node.lineno


# Files of other programs, and the socket's end of sendfile.
MAY = {
    "files.py": {"*"},
    "workers.py": {"*"},
    "java.py": {"*"},
    "settings.py": {"*"},
    "broker/transport.py": {"os.sendfile"},
}


def test_files_threads_and_processes_go_through_their_module() -> None:
    found = {
        f"{name}:{line} {what}"
        for name, tree in SOURCES.items()
        for what, line in forbidden(tree)
        if not {"*", what} & MAY.get(name, set())
    }
    assert not found


def test_the_list_of_operations_is_whole() -> None:
    """What is in files.py and not built on others is replaced by a simulation."""
    named = {
        name
        for name, value in vars(files).items()
        if callable(value) and not name.startswith("_") and not isinstance(value, type)
    }
    assert named - BUILT - {"use", "Any", "Callable", "Mapping"} == set(files.OPERATIONS)
