"""One ``tidelog cluster`` command at a time changes a cluster: ``up`` while ``down`` is still at
work would forget processes, each writing ``cluster.json`` as it has read it.

The lock is the system's (flock), not the file: it is gone when its process is.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

from tidelog.tools.output import note


@contextlib.contextmanager
def locked(data: Path) -> Iterator[None]:
    """Change the cluster of a folder, after whoever changes it now; read its state only then."""
    with (data / "cluster.lock").open("a+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.seek(0)
            holder = file.read().strip() or "not known yet"
            note(f"waiting for another tidelog cluster command (process {holder})")
            fcntl.flock(file, fcntl.LOCK_EX)
        file.truncate(0)
        file.write(str(os.getpid()))
        file.flush()
        yield
