"""A shard without a broker: the log under it stores when it is told to."""

from tidelog.clock import FakeClock
from tidelog.coordinators.groups.consumer_members import ConsumerLimits
from tidelog.coordinators.groups.members import GroupLimits
from tidelog.coordinators.groups.records import (
    SERDE,
)
from tidelog.coordinators.groups.shard import GroupShard
from tidelog.errors import ErrorCode


class Log:
    """The partition of a shard: what was written, and what is on its way."""

    def __init__(self, clock=None):
        self.clock = clock or FakeClock()
        self.rows = []
        self.times = []
        self.waiting = []
        self.deadlines = {}

    def on_expired(self, callback):
        self.callback = callback

    def schedule(self, key, deadline):
        self.deadlines.pop(key, None)
        if deadline is not None:
            self.deadlines[key] = deadline

    def write(self, encoded, done, *, in_one_batch=True):
        self.waiting.append((encoded, done))

    def store(self, error=ErrorCode.NONE, *, late=False):
        """The oldest write is done; if it is late, it is there in spite of the error."""
        encoded, done = self.waiting.pop(0)
        if not error or late:
            self.rows += encoded
            self.times += [self.clock.now_ms()] * len(encoded)
        done(error)

    def store_all(self):
        while self.waiting:
            self.store()


def make_shard(log, metadata):
    """A shard, with what its log says; ``metadata`` may be a function."""
    now = metadata if callable(metadata) else lambda: metadata
    shard = GroupShard(log, log, log.clock, GroupLimits(), lambda _: ConsumerLimits(), now)
    for row, time_ms in zip(log.rows, log.times, strict=True):
        shard.replay(SERDE.decode(*row), time_ms)
    shard.loaded()
    return shard
