"""What the commands do that run Spark, without Spark."""

from __future__ import annotations

import logging
import os
import signal

import click
import pytest

from tidelog.pipeline.progress import Line
from tidelog.tools.spark import interruptible


def test_an_interrupt_that_became_another_failure_is_an_interrupt(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """PySpark's `collect` asks the JVM a last thing, which the terminal may have ended."""
    before = signal.getsignal(signal.SIGINT)
    try:
        with pytest.raises(click.exceptions.Exit) as ended, interruptible(Line(enabled=False)):
            try:
                os.kill(os.getpid(), signal.SIGINT)
            finally:
                raise click.ClickException("the JVM does not answer")
    finally:
        signal.signal(signal.SIGINT, before)
        logging.disable(logging.NOTSET)
    assert ended.value.exit_code == 130
    assert capsys.readouterr().err == "interrupted\n"


def test_a_failure_stays_a_failure() -> None:
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(click.ClickException, match="no such table"), interruptible(Line()):
        raise click.ClickException("no such table")
    assert signal.getsignal(signal.SIGINT) is before
