"""Topic patterns of consumer groups (KIP-848): RE2, with bounds on what a client can make it cost.

Clients send patterns to the coordinator in RE2's syntax, and RE2 itself matches them: in time that
grows with the length of the name, whatever the pattern.  Python's ``re`` would let one pattern,
``(a|a)*b``, stop the broker for years.  A pattern must match the whole name.

What is left to bound is the constant: the program that a pattern compiles to (``_PROGRAM_BYTES``)
and the states that RE2 remembers while it matches (``_MATCH_BYTES``), which are kept for one call
only.  The library is imported on first use; most brokers never see a pattern.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from tidelog.errors import ApiError, ErrorCode

if TYPE_CHECKING:
    import re2

LONGEST = 4096  # characters of a pattern
# About 5,000 instructions: a list of names as long as a pattern may be fits, \pL{1000} does not.
_PROGRAM_BYTES = 128 * 1024
_MATCH_BYTES = 4 * 1024 * 1024


def check_pattern(pattern: str) -> None:
    """Raise INVALID_REGULAR_EXPRESSION, with RE2's reason, for a pattern that cannot be served."""
    import re2

    if len(pattern) > LONGEST:
        message = f"a regular expression of {len(pattern)} characters is over {LONGEST}"
        raise ApiError(ErrorCode.INVALID_REGULAR_EXPRESSION, message)
    try:
        with _compiled(pattern, _PROGRAM_BYTES):
            pass
    except re2.error as error:
        reason = error.args[0].decode("utf-8", "replace")
        message = f"the regular expression {pattern!r} is not valid: {reason}"
        raise ApiError(ErrorCode.INVALID_REGULAR_EXPRESSION, message) from error


def matching(pattern: str, names: Iterable[str]) -> frozenset[str]:
    """The names that a pattern matches; raises as :func:`check_pattern`."""
    check_pattern(pattern)
    with _compiled(pattern, _MATCH_BYTES) as regex:
        return frozenset(name for name in names if regex.fullmatch(name))


@contextmanager
def _compiled(pattern: str, max_bytes: int) -> Iterator[re2._Regexp]:
    import re2

    options = re2.Options()
    options.max_mem = max_bytes
    options.never_capture = True
    options.log_errors = False  # to stderr, past logging
    try:
        yield re2.compile(pattern, options)
    finally:
        re2.purge()  # its cache would keep 128 patterns, each with all its states
