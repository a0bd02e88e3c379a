"""A broker in a process of its own; see the package."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tidelog.testing.process import BrokerProcess


class LocalBroker(BrokerProcess):
    """``with LocalBroker() as broker: ... broker.bootstrap ...``

    ``settings`` are Kafka's.  With ``data`` the folder is yours and is kept; without it is
    temporary and goes at the end.  A restart keeps the port.
    """

    def __init__(
        self, settings: Mapping[str, Any] | None = None, data: str | Path | None = None
    ) -> None:
        self._temporary = data is None
        folder = Path(data) if data else Path(tempfile.mkdtemp(prefix="tidelog-"))
        super().__init__(folder, settings or {})

    def _command(self) -> list[str]:
        return ["up", "--data", str(self.data), "--port", str(self.port)]

    def start(self) -> LocalBroker:
        """Start and wait until it serves."""
        self.launch()
        try:
            self.wait_ready()
        except RuntimeError:
            self._remove_temporary()
            raise
        return self

    def restart(self) -> LocalBroker:
        """A clean stop and a start on the same port and data."""
        self.stop()
        return self.start()

    def __enter__(self) -> LocalBroker:
        try:
            return self.start()
        except BaseException:
            self.__exit__()
            raise

    def __exit__(self, *_: object) -> None:
        if self.process is not None:
            if self._temporary:
                self.kill()  # nothing is kept, so nothing need be flushed
            else:
                self.stop()
        self._remove_temporary()

    def _remove_temporary(self) -> None:
        if self._temporary:
            shutil.rmtree(self.data, ignore_errors=True)
            self.log_path.unlink(missing_ok=True)
