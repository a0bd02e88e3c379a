"""What the commands that run Spark share: a progress line while it starts, and an end by Ctrl-C."""

from __future__ import annotations

import contextlib
import logging
import signal
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

import click

from tidelog.tools.output import note
from tidelog.tools.stop_signal import StopSignal

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tidelog.pipeline.progress import Line


def start_spark(
    name: str,
    line: Line,
    stop: StopSignal,
    *,
    master: str | None = None,
    settings: Mapping[str, str] | None = None,
) -> SparkSession:
    """A session; call it inside of :func:`interruptible`, which gives ``stop``."""
    if line.terminal:  # a log needs no such line
        line.show("starting Spark ...")
    import tidelog.pipeline

    try:
        spark = tidelog.pipeline.session(name, master=master, settings=settings)
    except (ValueError, RuntimeError) as error:
        raise click.ClickException(str(error)) from None
    stop.install()  # PySpark has put its own handler in place of ours
    return spark


@contextlib.contextmanager
def interruptible(line: Line, last_words: str = "interrupted") -> Iterator[StopSignal]:
    """Ctrl-C ends the command: one line, exit code 130, and no stack trace.

    PySpark's own handler would ask the JVM to cancel the jobs, in the middle of another call to
    it from this thread, and py4j would show the stacks of both.  Spark ends with the process.
    """
    with StopSignal(signal.SIGINT, raising=True, on_signal=_silence) as stop:
        try:
            yield stop
        except BaseException as error:
            # A terminal's signal ends Spark, too: on its way here the interrupt may meet code that
            # asks the JVM a last thing (PySpark's `collect` does), and become its failure.
            if not (isinstance(error, KeyboardInterrupt) or stop):
                raise
            line.end()
            note(last_words)
            raise click.exceptions.Exit(stop.exit_code) from None
        finally:
            line.end()


def _silence() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a second one would interrupt the clean-up
    logging.disable(logging.CRITICAL)  # py4j logs which call was interrupted
