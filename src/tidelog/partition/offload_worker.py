"""The process that opens large batches: ``python -m tidelog.partition.offload_worker``.

Jobs come on standard input, results leave on standard output, both as a size of eight bytes and a
pickle; see ``offload.py``.  When its input ends (the broker has no more work, or is gone) it goes.
A job comes with the seconds of processor time that it may take, however busy the machine is.  The
answer is a tuple of the result, or an empty one if that was not enough.
"""

from __future__ import annotations

import contextlib
import pickle
import signal
import struct
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

from tidelog.errors import ApiError, ErrorCode
from tidelog.wire.primitives import ProtocolError

_SIZE = struct.Struct(">Q")
_OUT_OF_MEMORY_SCORE = "500"  # if there is too little memory, the broker stays


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a Ctrl-C is for the broker
    with contextlib.suppress(OSError):  # not on Linux
        Path("/proc/self/oom_score_adj").write_text(_OUT_OF_MEMORY_SCORE, encoding="ascii")
    signal.signal(signal.SIGPROF, _give_up)
    source, target = sys.stdin.buffer, sys.stdout.buffer
    while size := source.read(_SIZE.size):
        answer = pickle.dumps(_answer(source.read(*_SIZE.unpack(size))))
        target.write(_SIZE.pack(len(answer)))
        target.write(answer)
        target.flush()


class _GivenUp(BaseException):
    """The time for a job is up."""


def _give_up(*_: object) -> NoReturn:
    raise _GivenUp


def _answer(question: bytes) -> tuple[Any, ...]:
    try:
        function, args, seconds = pickle.loads(question)
        signal.setitimer(signal.ITIMER_PROF, seconds)
        try:
            return (work(function, args),)
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0)
    except _GivenUp:
        return ()


def work(function: Callable[..., Any], args: tuple[Any, ...]) -> Any:
    """The result of a job, or what it raised as an ApiError."""
    try:
        return function(*args)
    except ProtocolError as error:
        return ApiError(ErrorCode.CORRUPT_MESSAGE, error.message)
    except ApiError as error:
        return error
    except MemoryError:
        message = "there is no memory to open the batch; send smaller batches"
        return ApiError(ErrorCode.MESSAGE_TOO_LARGE, message)
    except Exception as error:
        traceback.print_exc()  # a bug of ours
        return ApiError(ErrorCode.UNKNOWN_SERVER_ERROR, f"{type(error).__name__}: {error}")


if __name__ == "__main__":
    main()
