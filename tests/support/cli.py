"""Commands as a user types them: in this process for speed, by themselves where it matters."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
from collections.abc import Callable
from typing import Any, NamedTuple

from click.testing import CliRunner

from tidelog.tools.main import main


class Result(NamedTuple):
    """What a command did."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)

    @property
    def lines(self) -> list[str]:
        return self.out.splitlines()


Command = Callable[..., Result]


def run(*args: str, bootstrap: str = "", stdin: str | bytes = "") -> Result:
    """Run ``tidelog ARGS`` in this process; every way out goes through ``main``."""
    env = {"TIDELOG_BOOTSTRAP": bootstrap or None}
    with CliRunner().isolation(input=stdin, env=env) as (out, err, _):
        code = 0
        try:
            main([str(arg) for arg in args])
        except SystemExit as stop:
            code = int(stop.code or 0)
        sys.stdout.flush()
        sys.stderr.flush()
        return Result(code, out.getvalue().decode(), err.getvalue().decode())


def spawn(*args: str, bootstrap: str, **options: Any) -> subprocess.Popen[str]:
    """``tidelog ARGS`` as a process of its own."""
    streams = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return subprocess.Popen(
        [sys.executable, "-m", "tidelog", *args],
        env={**os.environ, "TIDELOG_BOOTSTRAP": bootstrap},
        text=True,
        **{**streams, **options},
    )


def on_terminal(*args: str, bootstrap: str = "", columns: int = 80) -> list[str]:
    """The lines that ``tidelog ARGS`` shows on a terminal of so many columns."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "tidelog", *args],
        env={
            **os.environ,
            "TIDELOG_BOOTSTRAP": bootstrap,
            "COLUMNS": str(columns),
            "TERM": "dumb",
        },
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
    )
    os.close(theirs)
    shown = b""
    while True:
        try:
            more = os.read(ours, 65536)
        except OSError:  # Linux: the other side is closed
            break
        if not more:
            break
        shown += more
    os.close(ours)
    process.wait()
    return shown.decode().replace("\r\n", "\n").splitlines()
