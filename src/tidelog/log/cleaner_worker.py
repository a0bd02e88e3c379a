"""The process that compacts: ``python -m tidelog.log.cleaner_worker``, started by a broker.

Jobs come as lines of JSON on standard input, answers leave the same way: one line for
each group of segments that has a copy, one at the end, or one that says why not.

    -> {"directory": ..., "segments": [...], ...}          see Job
    <- {"cleaned": {"bases": [0, 120], ...}}               see Cleaned
    <- {"finished": {"end_offset": 240, ...}}              see Finished
    <- {"corrupt": "why"} or {"failed": "why"}             instead of finished

The broker's latency comes first: the worker runs at the lowest priority.  When its input
ends (the broker has no more work, or is gone) it goes at once, whatever it is doing: what
it leaves behind are ``.cleaned`` files, which the next start removes.
"""

from __future__ import annotations

import json
import os
import queue
import signal
import sys
import traceback
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from tidelog import workers
from tidelog.log.cleaner import Cleaned, CleaningJob, CorruptLog, clean

NICE = 19


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a Ctrl-C is for the broker
    os.nice(NICE)
    jobs: queue.SimpleQueue[str] = queue.SimpleQueue()
    workers.daemon("input", _read, jobs)
    while True:
        for line in answers(jobs.get()):
            _say(line)


def _read(jobs: queue.SimpleQueue[str]) -> None:
    for line in sys.stdin:
        jobs.put(line)
    os._exit(0)


def answers(line: str) -> Iterator[str]:
    """Do a job, and say so line by line."""
    job = CleaningJob.from_json(json.loads(line))
    try:
        for item in clean(job):
            yield _answer("cleaned" if isinstance(item, Cleaned) else "finished", asdict(item))
    except CorruptLog as error:
        yield _answer("corrupt", str(error))
    except OSError as error:
        yield _answer("failed", f"{error.strerror or error}: {error.filename or job.directory}")
    except Exception as error:  # tried again and again it would only fail again
        yield _answer("corrupt", f"{type(error).__name__}: {error}\n{traceback.format_exc()}")


def _answer(kind: str, value: Any) -> str:
    return json.dumps({kind: value}) + "\n"


def _say(line: str) -> None:
    try:
        sys.stdout.write(line)
        sys.stdout.flush()
    except BrokenPipeError:
        os._exit(0)  # the broker is gone


if __name__ == "__main__":
    main()
