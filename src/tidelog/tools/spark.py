"""What the commands share that run Spark: a word while it starts, and a quick end by Ctrl-C."""

from __future__ import annotations

import contextlib
import logging
import signal
import threading
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, NoReturn

import click

from tidelog.tools.output import note

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tidelog.pipeline.progress import Line

_came = threading.Event()  # an interrupt


def start_spark(
    name: str, line: Line, *, master: str | None = None, settings: Mapping[str, str] | None = None
) -> SparkSession:
    """A session; call it inside of :func:`interruptible`."""
    if line.terminal:  # a log needs no such line
        line.show("starting Spark ...")
    import tidelog.pipeline

    try:
        spark = tidelog.pipeline.session(name, master=master, settings=settings)
    except (ValueError, RuntimeError) as error:
        raise click.ClickException(str(error)) from None
    _catch()  # PySpark has put its own in place of ours
    return spark


@contextlib.contextmanager
def interruptible(line: Line, last_words: str = "interrupted") -> Iterator[None]:
    """Ctrl-C ends the command: one line, exit code 130, and no stack of anybody's."""
    before = signal.getsignal(signal.SIGINT)
    _came.clear()
    _catch()
    try:
        yield
    except BaseException as error:
        # A terminal's signal ends Spark, too: on its way here the interrupt may meet somebody who
        # asks the JVM a last thing (PySpark's `collect` does), and become that one's failure.
        if not (isinstance(error, KeyboardInterrupt) or _came.is_set()):
            raise
        line.end()
        note(last_words)
        raise click.exceptions.Exit(128 + signal.SIGINT) from None
    finally:
        line.end()
        if not _came.is_set():
            _handle(before)


def _catch() -> None:
    _handle(_interrupt)


def _interrupt(*_: Any) -> NoReturn:
    """PySpark's own handler would ask the JVM to cancel the jobs, in the middle of whatever this
    thread is asking it, and py4j would show the stacks of both.  Spark ends with the process."""
    _came.set()
    _handle(signal.SIG_IGN)  # once is enough: a second one would interrupt the tidying up
    logging.disable(logging.CRITICAL)  # py4j writes down which call was interrupted
    raise KeyboardInterrupt


def _handle(handler: Any) -> None:
    with contextlib.suppress(ValueError):  # not the main thread: nobody interrupts it
        signal.signal(signal.SIGINT, handler)
