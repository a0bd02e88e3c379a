"""Random numbers and ids: the only module of the broker that draws them.

They come from the operating system.  :func:`use` puts another source in its place, for the whole
process: a simulation gives a ``random.Random`` with a seed.  One source is enough for several
brokers in one event loop: there is one order of events, so that the same seed gives each of them
the same numbers.
"""

from __future__ import annotations

import random
import uuid

_source: random.Random = random.SystemRandom()


def use(source: random.Random) -> random.Random:
    """Draw from another source; returns the one that was used."""
    global _source
    before, _source = _source, source
    return before


def number(start: int, stop: int) -> int:
    """A number from ``start`` up to, but not, ``stop``."""
    return _source.randrange(start, stop)


def random_uuid() -> bytes:
    """An id of a topic or a cluster: UUID version 4, never one that would start with a dash on
    a command line (see ``wire/uuids.py`` for the text form)."""
    while True:
        raw = uuid.UUID(bytes=_source.randbytes(16), version=4).bytes
        if raw[0] >> 2 != 62:  # the dash of URL-safe base64
            return raw


def random_name() -> str:
    """An id of a group's member: a UUID as text."""
    return str(uuid.UUID(bytes=_source.randbytes(16), version=4))
