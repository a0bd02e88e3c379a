"""Builds strangers' programs once, into ``.cache``, for ``./dev test --clients``.

Plain ``./dev test`` skips what needs a compiler or a registry, and says so.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

HERE = Path(__file__).parent
CACHE = HERE.parents[1] / ".cache" / "clients"
_PATIENCE = 540  # seconds, for a first build with downloads


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

    What cannot be fetched or built skips the test, with the tool's last words.
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
    """One step of a build, or a skip that says what went wrong."""
    done = subprocess.run(
        [str(part) for part in command],
        cwd=cwd,
        env={**os.environ, **environment},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=_PATIENCE,
        check=False,
    )
    if done.returncode:
        words = (done.stderr.strip() or done.stdout.strip()).splitlines()[-3:]
        pytest.skip(f"{Path(command[0]).name} failed: {' / '.join(words)}")
