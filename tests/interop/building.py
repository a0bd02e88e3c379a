"""Builds strangers' programs once, into ``.cache``, for ``./dev test --clients``.

Plain ``./dev test`` skips what needs a compiler or a registry, and says so.  With ``--clients``
a test is skipped only for want of a tool or of the network: a program of ours that does not
compile fails its tests.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import shutil
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

HERE = Path(__file__).parent
CACHE = HERE.parents[1] / ".cache" / "clients"
_PATIENCE = 540  # seconds, for a first build with downloads
# How Maven, Go, Cargo, npm and pip say that there is no network, or not this package.
_UNREACHABLE = re.compile(
    r".*(unknown host|no such host|resolve host|name resolution|ENOTFOUND|EAI_AGAIN|ECONNREFUSED"
    r"|ECONNRESET|ETIMEDOUT|timed out|timeout|connection refused|connection reset|unreachable"
    r"|could not connect|could not transfer|network error|dial tcp|no matching distribution).*",
    re.IGNORECASE,
)


def heavy(*tools: str) -> list[pytest.MarkDecorator]:
    """Marks for a file whose tests need tools that not everyone has."""
    missing = [tool for tool in tools if shutil.which(tool) is None]
    if not os.environ.get("TIDELOG_CLIENTS"):
        reason = "only with ./dev test --clients"
    else:
        reason = f"{' and '.join(missing)} not installed" if missing else ""
    # The first test of a worker may wait for a build.
    return [pytest.mark.skipif(bool(reason), reason=reason), pytest.mark.timeout(600)]


def build(name: str, sources: Sequence[Path], make: Callable[[Path], None]) -> Path:
    """The folder that ``make`` filled from these sources; made again when they change.

    ``make`` is made of :func:`run_fetch` and :func:`run_build`.
    """
    digest = hashlib.sha256()
    for source in sorted(sources):
        digest.update(source.name.encode() + source.read_bytes())
    folder = CACHE / name
    stamp = folder / ".built"
    CACHE.mkdir(parents=True, exist_ok=True)
    with (CACHE / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # workers build a thing once
        if not stamp.exists() or stamp.read_text() != digest.hexdigest():
            folder.mkdir(exist_ok=True)
            make(folder)
            stamp.write_text(digest.hexdigest())
    return folder


def run_build(*command: str | Path, cwd: Path | None = None, **environment: str) -> None:
    """Compile; if it cannot be done the test fails, with the tool's last words."""
    done = _run(command, cwd, environment)
    if done.returncode:
        pytest.fail(f"{' '.join(map(str, command))}: {_last_words(done, 30)}", pytrace=False)


def run_fetch(*command: str | Path, cwd: Path | None = None, **environment: str) -> None:
    """Fetch from a registry; if it cannot be reached the test is skipped."""
    tool = Path(command[0]).name
    try:
        done = _run(command, cwd, environment)
    except subprocess.TimeoutExpired:
        pytest.skip(f"{tool}: nothing came from the registry in {_PATIENCE} seconds")
    if not done.returncode:
        return
    if found := _UNREACHABLE.search(done.stdout + done.stderr):
        pytest.skip(f"{tool} cannot reach its registry: {found[0].strip()}")
    pytest.fail(f"{' '.join(map(str, command))}: {_last_words(done, 30)}", pytrace=False)


def _last_words(done: subprocess.CompletedProcess[str], count: int) -> str:
    return "\n".join((done.stdout + done.stderr).strip().splitlines()[-count:])


def _run(
    command: Sequence[str | Path], cwd: Path | None, environment: dict[str, str]
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(part) for part in command],
        cwd=cwd,
        env={**os.environ, **environment},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=_PATIENCE,
        check=False,
    )
