"""The launcher of brokers: what becomes of a broker, and of its first line."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.cli import run
from support.waiting import until

from tidelog.log.manager import CLEAN_MARK
from tidelog.testing import LocalBroker
from tidelog.testing.process import BrokerProcess


def test_a_broker_whose_launcher_has_died_goes_on(tmp_path: Path) -> None:
    """As if `tidelog cluster up` were killed while it waits until its brokers are ready."""
    broker = LocalBroker(data=tmp_path / "data")
    broker.launch()
    try:
        assert broker.process is not None
        assert broker.process.stdout is not None
        broker.process.stdout.close()
        until(
            lambda: (
                broker.process.poll() is not None
                or run("topics", "list", bootstrap=broker.bootstrap).code == 0
            ),
            "the broker serves",
        )
        assert broker.process.poll() is None, broker.log
        until(lambda: "cannot be written" in broker.log, "it logs that its output is closed")
    finally:
        code = broker.stop()
    assert code == 0
    assert (broker.data / CLEAN_MARK).exists()


class HelpProcess(BrokerProcess):
    """Its first line is no announcement."""

    def _command(self) -> list[str]:
        return ["up", "--help"]


def test_a_first_line_that_is_no_announcement_is_a_clear_error(tmp_path: Path) -> None:
    process = HelpProcess(tmp_path / "data", {})
    process.launch()
    with pytest.raises(RuntimeError, match="the broker announced itself with 'Usage: "):
        process.wait_ready()
    assert process.process is None
