"""Commands against the shared broker."""

from __future__ import annotations

import pytest
from support.cli import Command, Result, run

from tidelog.testing import LocalBroker


@pytest.fixture
def tidelog(broker: LocalBroker) -> Command:
    """Run a command against the shared broker."""

    def call(*args: str, stdin: str | bytes = "") -> Result:
        return run(*args, bootstrap=broker.bootstrap, stdin=stdin)

    return call
