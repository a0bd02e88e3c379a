"""The process that opens large batches: ``python -m tidelog.broker.offload_worker CPU_SECONDS``.

Jobs come on standard input, results leave on standard output, both as a size of eight bytes and a
pickle; see ``offload.py``.  When its input ends (the broker has no more work, or is gone) it goes.
A job that takes more than CPU_SECONDS of processor time, however busy the machine is, is given up.
"""

from __future__ import annotations

import contextlib
import pickle
import signal
import struct
import sys
import traceback
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
    seconds = float(sys.argv[1])
    signal.signal(signal.SIGPROF, lambda *_: _give_up(seconds))
    source, target = sys.stdin.buffer, sys.stdout.buffer
    while size := source.read(_SIZE.size):
        answer = pickle.dumps(_work(source.read(*_SIZE.unpack(size)), seconds))
        target.write(_SIZE.pack(len(answer)))
        target.write(answer)
        target.flush()


def _give_up(seconds: float) -> NoReturn:
    message = f"it takes more than {seconds:g} s to check the batch; send smaller batches"
    raise ApiError(ErrorCode.MESSAGE_TOO_LARGE, message)


def _work(question: bytes, seconds: float) -> Any:
    try:
        function, args = pickle.loads(question)
        signal.setitimer(signal.ITIMER_PROF, seconds)
        try:
            return function(*args)
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0)
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
