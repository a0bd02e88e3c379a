"""Ctrl-C and SIGTERM: the one way in which a command ends at a signal.

    with StopSignal() as stop:
        while not stop:
            with stop.raising():
                wait()
            work()
        with stop.cleaning_up():
            close()

A signal is noted and the work goes on to where it may stop; while a command only waits
(:meth:`StopSignal.raising`) it raises KeyboardInterrupt at once, and so does a second signal.
Once the clean-up has begun none does: it would leave processes behind, or a group not left.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from types import FrameType
from typing import Any, TypeVar

T = TypeVar("T")


class StopSignal:
    """See the module.  Only the main thread can handle signals; elsewhere this does nothing.

    ``on_signal`` is called at the first signal.  ``exit_at_second``: the second ends the process
    on the spot, for work that is safe against kill -9 and cannot be interrupted otherwise.
    """

    def __init__(
        self,
        *numbers: signal.Signals,
        raising: bool = False,
        on_signal: Callable[[], object] | None = None,
        exit_at_second: bool = False,
    ) -> None:
        self.number = 0  # of the signal that came
        self._numbers = numbers or (signal.SIGINT, signal.SIGTERM)
        self._raising = raising
        self._on_signal = on_signal
        self._exit_at_second = exit_at_second
        self._cleaning_up = False
        self._previous: dict[signal.Signals, Any] = {}

    def __bool__(self) -> bool:
        return self.number != 0

    @property
    def exit_code(self) -> int:
        """As a shell reports a process that a signal has ended."""
        return 128 + (self.number or signal.SIGINT)

    def _handle(self, number: int, _: FrameType | None) -> None:
        second, self.number = bool(self.number), number
        if second and self._exit_at_second:
            os._exit(self.exit_code)
        if not second and self._on_signal is not None:
            self._on_signal()
        if self._cleaning_up:
            return
        if self._raising or (second and self._on_signal is None):
            raise KeyboardInterrupt

    @contextlib.contextmanager
    def raising(self) -> Iterator[None]:
        """While this is entered, a signal raises KeyboardInterrupt."""
        before, self._raising = self._raising, True
        try:
            yield
        finally:
            self._raising = before

    @contextlib.contextmanager
    def cleaning_up(self) -> Iterator[None]:
        """While this is entered, no signal raises."""
        self._cleaning_up = True
        try:
            yield
        finally:
            self._cleaning_up = False

    @contextlib.contextmanager
    def closing(self, resource: AbstractContextManager[T]) -> Iterator[T]:
        """Enter a resource; while it is left, no signal raises."""
        try:
            with resource as entered:
                try:
                    yield entered
                finally:
                    self._cleaning_up = True
        finally:
            self._cleaning_up = False

    def install(self) -> None:
        """Set the handlers; again, if a library has put its own in their place."""
        if threading.current_thread() is threading.main_thread():
            for number in self._numbers:
                self._previous.setdefault(number, signal.signal(number, self._handle))

    def __enter__(self) -> StopSignal:
        self.install()
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._previous.items():
            if signal.getsignal(number) == self._handle:  # and not one that on_signal has set
                signal.signal(number, handler)
