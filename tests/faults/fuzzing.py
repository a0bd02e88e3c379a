"""Send mutated requests over many connections, and hold the broker to its promises.

Every request is answered or its connection is closed.  Only two kinds may be silent: a
Fetch that waits for records, a Produce that wants no answer (or waits for acks), and a
request whose size lies; those connections are dropped after a moment, as by a client
that vanishes.  A watchdog asks for Metadata all the time.
"""

import selectors
import socket
import struct
import threading
import time
from collections import Counter, deque

from faults.mutations import Mutator
from raw_client import RawClient

from tidelog.wire.messages.delete_topics import (
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    DeleteTopicState,
)
from tidelog.wire.messages.metadata import MetadataRequest, MetadataResponse

LANES = 40  # fewer than the listen backlog: a connection that does not fit waits a second
WINDOW = 5  # requests on their way on one connection
SILENCE = 0.25  # after this a silent request that may be silent is given up
HANG = 20.0  # after this one that may not be is a hang
TOPIC = "everything"
_PRODUCE, _FETCH, _JOIN_GROUP, _SYNC_GROUP = 0, 1, 11, 14  # these may wait


class Violation(AssertionError):
    """The broker broke a promise."""


class Lane:
    """One connection and the requests on it."""

    def __init__(self, port, selector):
        self.port, self.selector = port, selector
        self.waiting = deque()  # (correlation id, frame), sent and not answered
        self.unsent = b""
        self.again = deque()  # the connection went before they were served
        self.sock = None
        self.tainted = False  # a size was wrong: from there on requests are torn
        self.buffer = bytearray()
        self.moved = time.monotonic()

    def open(self):
        self.sock = socket.create_connection(("127.0.0.1", self.port), timeout=10)
        # No TIME_WAIT: millions of connections would run out of ports.
        self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.sock.setblocking(False)
        self.buffer.clear()
        self.unsent = b""
        self.tainted = False
        self.selector.register(self.sock, selectors.EVENT_READ, self)

    def close(self):
        if self.sock is not None:
            self.selector.unregister(self.sock)
            self.sock.close()
            self.sock = None


class Fuzzer:
    """See the module."""

    def __init__(self, port, seed, topic_id):
        self.port = port
        self.mutator = Mutator(seed, topic_id)
        self.served = 0
        self.outcomes = Counter()
        self._selector = selectors.DefaultSelector()
        self._lanes = [Lane(port, self._selector) for _ in range(LANES)]
        self._correlation = 0
        self._left = 0

    def run(self, count):
        """Have ``count`` more requests served."""
        self._left = count
        while self._left > 0 or any(lane.waiting or lane.again for lane in self._lanes):
            for lane in self._lanes:
                self._fill(lane)
            for key, _ in self._selector.select(0.05):
                self._read(key.data)
            now = time.monotonic()
            for lane in self._lanes:
                if lane.waiting and now - lane.moved > SILENCE:
                    self._silent(lane, now)

    def close(self):
        for lane in self._lanes:
            lane.close()

    def _fill(self, lane):
        if lane.sock is None:
            lane.open()
        if len(lane.waiting) <= WINDOW // 2:
            frames = []
            while len(lane.waiting) < WINDOW and (lane.again or self._left > 0):
                frame = self._next(lane)
                lane.tainted |= frame.lies
                self._correlation = (self._correlation + 1) & 0x7FFFFFFF
                lane.waiting.append((self._correlation, frame))
                frames.append(frame.numbered(self._correlation))
            if frames:
                lane.moved = time.monotonic()
                lane.unsent += b"".join(frames)
        if lane.unsent:
            try:
                lane.unsent = lane.unsent[lane.sock.send(lane.unsent) :]
            except BlockingIOError:
                pass
            except OSError:
                self._gone(lane)

    def _next(self, lane):
        if lane.again:
            return lane.again.popleft()
        self._left -= 1
        return self.mutator.frame()

    def _read(self, lane):
        try:
            data = lane.sock.recv(1 << 20)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._gone(lane)
            return
        lane.moved = time.monotonic()
        buffer = lane.buffer
        buffer += data
        at = 0
        while len(buffer) - at >= 8:
            size, correlation = struct.unpack_from(">ii", buffer, at)
            if len(buffer) - at - 4 < size:
                break
            at += 4 + size
            self._answered(lane, correlation)
        del buffer[:at]

    def _answered(self, lane, correlation):
        while lane.waiting:
            number, frame = lane.waiting.popleft()
            self.served += 1
            if number == correlation:
                self.outcomes["answered"] += 1
                return
            self.outcomes["silent"] += 1
            if frame.key != _PRODUCE and not lane.tainted:
                raise Violation(f"a request was passed over: {_told(frame)}")
        if not lane.tainted:
            raise Violation(f"an answer to a request that was not sent: {correlation}")

    def _gone(self, lane):
        """The broker hung up: the first that waits is why; the rest is sent again."""
        lane.close()
        if lane.waiting:
            lane.waiting.popleft()
            self.served += 1
            self.outcomes["refused"] += 1
        lane.again.extend(frame for _, frame in lane.waiting)
        lane.waiting.clear()

    def _silent(self, lane, now):
        _, frame = lane.waiting[0]
        if frame.key in (_PRODUCE, _FETCH, _JOIN_GROUP, _SYNC_GROUP) or lane.tainted:
            self.outcomes["silent"] += 1
            self._gone(lane)
        elif now - lane.moved > HANG:
            raise Violation(f"no answer in {HANG} s: {_told(frame)}")


def _told(frame):
    return f"API {frame.key} v{frame.version}, {frame.how}: {frame.data[:400].hex()}"


class Watchdog(threading.Thread):
    """A client like any other; how long did it ever wait?"""

    def __init__(self, port):
        super().__init__(daemon=True)
        self._port = port
        self._over = threading.Event()
        self.waits = []
        self.failed = None

    def run(self):
        try:
            with RawClient(self._port, timeout=60) as client:
                while not self._over.wait(0.01):
                    started = time.monotonic()
                    client.call(MetadataRequest(topics=[]), MetadataResponse, 9)
                    self.waits.append(time.monotonic() - started)
        except Exception as error:
            self.failed = error

    def __enter__(self):
        self.start()
        return self

    def __exit__(self, *_):
        self._over.set()
        self.join(70)

    def longest(self):
        if self.failed is not None:
            raise Violation(f"the watchdog was not served: {self.failed!r}")
        return max(self.waits, default=0.0)


def tidy(client):
    """Delete every topic that the fuzzer made; the base topic anew.  Returns its id."""
    answer = client.call(MetadataRequest(topics=None), MetadataResponse, 9)
    rows = [DeleteTopicState(name=topic.name) for topic in answer.topics]
    request = DeleteTopicsRequest(topics=rows, timeout_ms=60_000)
    for result in client.call(request, DeleteTopicsResponse, 6).responses:
        if result.error_code:
            raise Violation(f"{result.name!r} cannot be deleted: {result.error_message}")
    return client.create_topic(TOPIC, partitions=2)
