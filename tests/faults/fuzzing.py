"""Send mutated requests over many connections, and hold the broker to its promises.

Every request is answered, in order, or its connection is closed.  Silent may be: a Fetch that
waits for records, a Produce that wants no answer, and a request whose size lies; such
connections are dropped after a moment, as by a client that vanishes.

Between the mutants, on the same connections, go probes: real requests whose answers are
known, among them a record that is produced and fetched back.  A watchdog, a client of its
own, measures how long anybody has to wait.
"""

import importlib
import selectors
import socket
import struct
import threading
import time
from collections import Counter, deque

from faults.corpus import LOOKED_INTO, LOOKED_INTO_CONFIG, PLAIN_CONFIG, TOPIC
from faults.mutations import FETCH, PRODUCE, Frame, Mutator
from support.raw_client import RawClient, batch_of, values_of

from tidelog.broker.registry import REGISTRY
from tidelog.wire.frame import decode_response, encode_request
from tidelog.wire.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from tidelog.wire.messages.delete_topics import (
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    DeleteTopicState,
)
from tidelog.wire.messages.fetch import FetchResponse
from tidelog.wire.messages.metadata import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
)
from tidelog.wire.messages.produce import ProduceResponse
from tidelog.wire.primitives import ProtocolError

LANES = 40  # fewer than the listen backlog: a connection that does not fit waits a second
WINDOW = 8  # requests on their way on one connection
PROBE_EVERY = 25  # requests
READ_EVERY = 16  # answers to mutants that are decoded
SILENCE = 0.05  # after this a silent request that may be silent is given up
HANG = 20.0  # after this one that may not be is a hang
PROBE_TOPIC = "probe"
_JOIN_GROUP, _SYNC_GROUP, _API_VERSIONS = 11, 14, 18


class Violation(AssertionError):
    """The broker broke a promise."""


class Probe(Frame):
    """A real request, and a function that checks its answer."""

    __slots__ = ("check", "tries")

    def __init__(self, message, version, response, check):
        super().__init__(encode_request(message, version, 0, "probe"), "probe")
        self.check = lambda answer: check(decode_response(response, version, answer)[1])
        self.tries = 0


class Probes:
    """One after the other: ApiVersions, Metadata, Produce, and Fetch of what was produced."""

    def __init__(self):
        self.made = 0
        self.metadata_is_known = True  # else what is told of topics may be wrong
        self.produced = []  # values that were acknowledged, by offset
        self._to_fetch = deque()

    def next(self):
        self.made += 1
        kinds = (self._api_versions, self._metadata, self._produce, self._fetch)
        return kinds[self.made % 4]()

    def _api_versions(self):
        request = ApiVersionsRequest(client_software_name="probe", client_software_version="1")
        return Probe(request, 3, ApiVersionsResponse, self._check_versions)

    def _check_versions(self, answer):
        if {row.api_key for row in answer.api_keys} != set(REGISTRY):
            raise Violation(f"ApiVersions: {answer}")

    def _metadata(self):
        rows = [MetadataRequestTopic(name=PROBE_TOPIC)]
        request = MetadataRequest(topics=rows, allow_auto_topic_creation=False)
        return Probe(request, 9, MetadataResponse, self._check_metadata)

    def _check_metadata(self, answer):
        if self.metadata_is_known and [
            (t.error_code, t.name, len(t.partitions)) for t in answer.topics
        ] != [(0, PROBE_TOPIC, 1)]:
            raise Violation(f"Metadata: {answer}")

    def _produce(self):
        value = b"probe %d" % self.made
        request = RawClient.produce_request(PROBE_TOPIC, batch_of(value))

        def check(answer):
            (row,) = answer.responses[0].partition_responses
            if row.error_code:
                raise Violation(f"Produce: {answer}")
            self._to_fetch.append((row.base_offset, value))
            self.produced.append((row.base_offset, value))

        return Probe(request, 9, ProduceResponse, check)

    def _fetch(self):
        if not self._to_fetch:
            return self._produce()
        offset, value = self._to_fetch.popleft()

        def check(answer):
            (row,) = answer.responses[0].partitions
            if values_of(row.records, offset)[:1] != [(offset, value)]:
                raise Violation(f"Fetch: not {value!r} at {offset} but {answer}")

        request = RawClient.fetch_request((PROBE_TOPIC, 0, offset, 1))
        return Probe(request, 12, FetchResponse, check)

    def check_all(self, client):
        """Is every acknowledged record in the log?"""
        found = dict(enumerate(client.read_values(PROBE_TOPIC)))
        lost = [row for row in self.produced if found.get(row[0]) != row[1]]
        if lost:
            raise Violation(f"{len(lost)} acknowledged records are lost, the first is {lost[0]}")


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
        self.sock = socket.socket()
        self.sock.settimeout(HANG)
        self.sock.connect(("127.0.0.1", self.port))
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

    def send(self):
        """What the socket takes; the rest when it takes more.  OSError if it is gone."""
        before = self.unsent
        try:
            self.unsent = before[self.sock.send(before) :]
        except BlockingIOError:
            return
        if self.unsent:
            self.selector.modify(self.sock, selectors.EVENT_READ | selectors.EVENT_WRITE, self)
        else:
            self.selector.modify(self.sock, selectors.EVENT_READ, self)


class Fuzzer:
    """See the module."""

    def __init__(self, port, seed, topic_id):
        self.port = port
        self.mutator = Mutator(seed, topic_id)
        self.probes = Probes()
        self.served = 0
        self.hang = HANG
        self.outcomes = Counter()
        self._selector = selectors.DefaultSelector()
        self._lanes = [Lane(port, self._selector) for _ in range(LANES)]
        self._correlation = 0
        self._left = 0

    def run(self, count):
        """Have ``count`` more requests served."""
        self._left = count
        look = 0.0
        while self._left > 0 or any(lane.waiting or lane.again for lane in self._lanes):
            now = time.monotonic()
            if now > look:
                look = now + SILENCE / 5
                for lane in self._lanes:
                    if lane.waiting and now - lane.moved > SILENCE:
                        self._silent(lane, now)
                    self._fill(lane)
            for key, events in self._selector.select(0.05):
                if events & selectors.EVENT_READ:
                    self._read(key.data)
                self._fill(key.data)

    def close(self):
        for lane in self._lanes:
            lane.close()

    def _fill(self, lane):
        if lane.sock is None:
            if not (lane.again or self._left > 0):
                return
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
                lane.send()
            except OSError:
                self._read_rest(lane)

    def _next(self, lane):
        if lane.again:
            return lane.again.popleft()
        self._left -= 1
        if self._left % PROBE_EVERY == 0:
            return self.probes.next()
        return self.mutator.frame()

    def _read_rest(self, lane):
        """It cannot be sent to, but there may be answers."""
        while lane.sock is not None:
            self._read(lane, gone=True)

    def _read(self, lane, gone=False):
        try:
            data = lane.sock.recv(1 << 20)
        except BlockingIOError:
            if not gone:
                return
            data = b""
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
            start, at = at + 4, at + 4 + size
            frame = self._answered(lane, correlation)
            if frame is not None and not lane.tainted:
                self._check_answer(frame, buffer, start, at)
        del buffer[:at]

    def _answered(self, lane, correlation):
        while lane.waiting:
            number, frame = lane.waiting.popleft()
            self.served += 1
            if number == correlation:
                self.outcomes["answered"] += 1
                return frame
            self.outcomes["silent"] += 1
            if not lane.tainted and not _wants_no_answer(frame):
                raise Violation(f"a request was passed over: {_told(frame)}")
        if not lane.tainted:
            raise Violation(f"an answer to a request that was not sent: {correlation}")
        return None

    def _check_answer(self, frame, buffer, start, end):
        if isinstance(frame, Probe):
            frame.check(bytes(buffer[start:end]))
        elif self.served % READ_EVERY == 0 and frame.key != _API_VERSIONS:
            try:
                response = _response_of(frame.key)
                decode_response(response, frame.version, bytes(buffer[start:end]))
            except ProtocolError as error:
                raise Violation(f"the answer is not one ({error}): {_told(frame)}") from error

    def _gone(self, lane, outcome="refused"):
        """The broker hung up: the first that waits is why; the rest is sent again."""
        tainted = lane.tainted
        lane.close()
        if lane.waiting:
            _, frame = lane.waiting.popleft()
            if isinstance(frame, Probe):
                frame.tries += 1
                if frame.tries > 3 and not tainted:
                    raise Violation(f"a good request was refused: {_told(frame)}")
                lane.again.append(frame)
            else:
                self.served += 1
                self.outcomes[outcome] += 1
        lane.again.extend(frame for _, frame in lane.waiting)
        lane.waiting.clear()

    def _silent(self, lane, now):
        """Nothing came for a while; is that what the first request asks for?"""
        _, frame = lane.waiting[0]
        if lane.tainted or _wants_no_answer(frame) or _waits(frame):
            self._gone(lane, "silent")
        elif now - lane.moved > self.hang:
            raise Violation(f"no answer in {self.hang} s: {_told(frame)}")


def _wants_no_answer(frame):
    message = frame.decoded() if frame.key == PRODUCE else None
    return message is not None and message[1] == 0  # acks


def _waits(frame):
    """A Fetch for records that may never come, a group for members that may never join."""
    if frame.key in (_JOIN_GROUP, _SYNC_GROUP):
        return frame.decoded() is not None
    message = frame.decoded() if frame.key == FETCH else None
    return message is not None and message.max_wait_ms > 0 and message.min_bytes > 0


def _response_of(key):
    request = REGISTRY[key].request
    module = importlib.import_module(request.__module__)
    return getattr(module, request.__name__.removesuffix("Request") + "Response")


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
            with RawClient(self._port) as client:
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
    """Delete every topic but the probes', and make the base topics anew.

    Returns the id of the first one, and how many topics and partitions there were.
    """
    answer = client.call(MetadataRequest(topics=None), MetadataResponse, 9)
    topics = [topic for topic in answer.topics if topic.name != PROBE_TOPIC]
    if len(topics) == len(answer.topics):
        client.create_topic(PROBE_TOPIC)
    rows = [DeleteTopicState(name=topic.name) for topic in topics]
    request = DeleteTopicsRequest(topics=rows, timeout_ms=60_000)
    for result in client.call(request, DeleteTopicsResponse, 6).responses:
        if result.error_code:
            raise Violation(f"{result.name!r} cannot be deleted: {result.error_message}")
    topic_id = client.create_topic(TOPIC, partitions=2, **PLAIN_CONFIG)
    client.create_topic(LOOKED_INTO, **LOOKED_INTO_CONFIG)
    return topic_id, len(topics), sum(len(topic.partitions) for topic in topics)
