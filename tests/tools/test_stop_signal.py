"""Signals that end commands."""

from __future__ import annotations

import contextlib
import io
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest

from tidelog.tools.reading import ConsumeLoop, RecordChunk
from tidelog.tools.stop_signal import StopSignal
from tidelog.topic_partition import TopicPartition


def send(number: signal.Signals) -> None:
    os.kill(os.getpid(), number)


def test_a_signal_is_noted_and_the_handlers_come_back() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with StopSignal() as stop:
        assert not stop
        send(signal.SIGTERM)
        assert stop
        assert stop.exit_code == 143
    assert signal.getsignal(signal.SIGTERM) == before


def test_a_signal_interrupts_a_wait_and_a_second_one_the_work() -> None:
    with StopSignal() as stop:
        with pytest.raises(KeyboardInterrupt), stop.raising():
            send(signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):
            send(signal.SIGINT)
    assert stop.exit_code == 130


@pytest.mark.parametrize("raising", [False, True])
def test_no_signal_interrupts_a_clean_up(raising: bool) -> None:
    with StopSignal(raising=raising) as stop:
        with stop.cleaning_up():
            send(signal.SIGTERM)
            send(signal.SIGINT)
        assert stop.exit_code == 130
        with pytest.raises(KeyboardInterrupt):
            send(signal.SIGINT)


def test_no_signal_interrupts_the_end_of_a_resource() -> None:
    steps = []

    @contextlib.contextmanager
    def resource() -> Iterator[str]:
        try:
            yield "it"
        finally:
            send(signal.SIGTERM)
            steps.append("closed")

    with (
        StopSignal(raising=True) as stop,
        pytest.raises(KeyboardInterrupt),
        stop.closing(resource()) as entered,
    ):
        steps.append(entered)
        send(signal.SIGINT)
    assert steps == ["it", "closed"]


def test_consume_closes_its_source_whatever_comes() -> None:
    source = InterruptedSource()
    ConsumeLoop(source, lambda *_: b"", io.BytesIO()).run()
    assert source.closed


class InterruptedSource:
    """A signal comes while it waits, and another while it is closed."""

    at_end = disconnected = closed = False

    def poll(self, wait: float, room: int | None, stop: StopSignal) -> list[RecordChunk]:
        send(signal.SIGTERM)
        return []

    def written(self, partition: TopicPartition, offset: int) -> None: ...

    def close(self) -> None:
        send(signal.SIGTERM)
        self.closed = True


def test_on_signal_is_called_once_and_may_set_a_handler_that_stays() -> None:
    before = signal.getsignal(signal.SIGINT)
    calls = []

    def ignore() -> None:
        calls.append(signal.signal(signal.SIGINT, signal.SIG_IGN))

    try:
        with StopSignal(signal.SIGINT, on_signal=ignore) as stop:
            send(signal.SIGINT)
            send(signal.SIGINT)
        assert (bool(stop), len(calls)) == (True, 1)
        assert signal.getsignal(signal.SIGINT) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)


def test_other_threads_leave_signals_alone() -> None:
    before = signal.getsignal(signal.SIGINT)
    found = []

    def work() -> None:
        with StopSignal() as stop:
            found.append((bool(stop), signal.getsignal(signal.SIGINT)))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert found == [(False, before)]


def test_a_second_signal_can_end_the_process_at_once() -> None:
    script = (
        "import os, signal\n"
        "from tidelog.tools.stop_signal import StopSignal\n"
        "with StopSignal(on_signal=lambda: None, exit_at_second=True):\n"
        "    os.kill(os.getpid(), signal.SIGTERM)\n"
        "    print('still here', flush=True)\n"
        "    os.kill(os.getpid(), signal.SIGTERM)\n"
        "    print('never')\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (143, "still here\n")
