"""Writers and readers that do not give up when the broker dies.

Each is a thread.  Writers keep several requests on their way; after a lost connection an
idempotent writer sends again what was not acknowledged, a plain one goes on with the next
value (it cannot know).  What they were told goes into the history.
"""

import threading
from collections import deque

from confluent_kafka import Producer
from faults.history import History, value_of
from support.raw_client import RawClient, batch_of, values_of
from support.waiting import until

from tidelog.wire.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from tidelog.wire.messages.produce import ProduceResponse

IN_FLIGHT = 5
RECORDS = 10  # in a batch
PAUSE = 0.02  # before a connection is tried again


class Worker(threading.Thread):
    """Runs until it is told to stop; what goes wrong is kept for the test."""

    def __init__(self, name):
        super().__init__(name=name, daemon=True)
        self.failed = None
        self.trouble = ""  # what it met last
        self.lost = 0  # connections that broke or could not be made
        self._over = threading.Event()

    def run(self):
        try:
            while not self._over.is_set():
                try:
                    self.work()
                except OSError as error:
                    self.trouble = str(error)
                    self.lost += 1
                    self._over.wait(PAUSE)  # the broker is down
        except Exception as error:
            self.failed = error

    def work(self):
        raise NotImplementedError

    def wait_until_cut_off(self):
        """The broker is dead: until nothing that it said before is still on its way to us."""
        before = self.lost
        until(lambda: self.lost > before, f"{self.name} to notice")

    def stop(self):
        self._over.set()

    def done(self):
        self.join(200)
        assert not self.is_alive(), f"{self.name} does not end"
        if self.failed is not None:
            raise self.failed


class RawWriter(Worker):
    """Pipelined requests of one batch each."""

    def __init__(self, history, port, topic, partition, name, *, idempotent, size=100):
        super().__init__(name)
        self._history, self._port = history, port
        self._topic, self._partition = topic, partition
        self._idempotent, self._size = idempotent, size
        self._next = history.counts[name] = 0
        self._waiting = deque()  # (sequence, values) without an answer
        self._producer = None
        self.retriable = 0  # errors that the broker answered
        if idempotent:
            history.idempotent.add(name)

    def work(self):
        with RawClient(self._port) as client:
            if self._idempotent and self._producer is None:
                request = InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=1000)
                self._producer = client.call(request, InitProducerIdResponse, 4).producer_id
            if not self._idempotent:
                self._waiting.clear()
            for sequence, values in self._waiting:
                self._send(client, sequence, values)
            while not self._over.is_set() or self._waiting:
                if self._history.is_ahead(self.name):
                    self._over.wait(0.002)
                while len(self._waiting) < IN_FLIGHT and not self._over.is_set():
                    values = [
                        value_of(self.name, self._next + i, self._size) for i in range(RECORDS)
                    ]
                    self._waiting.append((self._next, values))
                    self._send(client, self._next, values)
                    self._next += RECORDS
                self._receive(client)

    def _send(self, client, sequence, values):
        identity = {}
        if self._idempotent:
            identity = {
                "producer_id": self._producer,
                "producer_epoch": 0,
                "base_sequence": sequence,
            }
        batch = batch_of(*values, **identity)
        client.send(client.produce_request(self._topic, batch, partition=self._partition), 9)

    def _receive(self, client):
        _, answer = client.receive(ProduceResponse, 9)
        row = answer.responses[0].partition_responses[0]
        if row.error_code:
            self.retriable += 1
            # Those behind it fail too (out of order): begin again with a new connection.
            raise ConnectionError(f"error {row.error_code}: {row.error_message}")
        _, values = self._waiting.popleft()
        for i, value in enumerate(values):
            self._history.acknowledge(self._partition, row.base_offset + i, value)


class LibrdkafkaWriter(Worker):
    """confluent-kafka with idempotence on; it retries by itself."""

    def __init__(self, history, port, topic, partition, name, size=100):
        super().__init__(name)
        self._history, self._topic, self._partition, self._size = history, topic, partition, size
        self._next = history.counts[name] = 0
        history.idempotent.add(name)
        self._producer = Producer(
            {
                "bootstrap.servers": f"127.0.0.1:{port}",
                "enable.idempotence": True,
                "linger.ms": 1,
                "batch.num.messages": 100,
                "queue.buffering.max.messages": 300,
                "reconnect.backoff.ms": 10,
                "reconnect.backoff.max.ms": 50,
                "retry.backoff.ms": 20,
                "log_level": 0,
            }
        )

    def work(self):
        if self._history.is_ahead(self.name):
            self._producer.poll(0.002)
        try:
            value = value_of(self.name, self._next, self._size)
            self._producer.produce(
                self._topic, value, partition=self._partition, on_delivery=self._delivered
            )
            self._next += 1
        except BufferError:
            self._producer.poll(0.05)
        self._producer.poll(0)

    def _delivered(self, error, message):
        if error is not None:
            self.failed = AssertionError(f"{self.name}: not delivered: {error}")
            self.stop()
            return
        self._history.acknowledge(message.partition(), message.offset(), message.value())

    def done(self):
        left = self._producer.flush(100)
        super().done()
        assert not left, f"{self.name}: {left} records are not acknowledged"


class Reader(Worker):
    """Reads a partition from its start, and notes what it saw."""

    def __init__(self, history, port, topic, partition, name="reader"):
        super().__init__(name)
        self._history, self._port = history, port
        self._topic, self._partition = topic, partition
        self.offset = 0

    def work(self):
        with RawClient(self._port) as client:
            while not self._over.is_set():
                row = (self._topic, self._partition, self.offset)
                (part,) = client.fetch(row, max_wait_ms=50)
                assert part.error_code == 0, f"{self.name}: error {part.error_code}"
                records = values_of(part.records, self.offset)
                self._history.see(self._partition, records, part.high_watermark)
                if records:
                    self.offset = records[-1][0] + 1


def whole_log(port, topic, partition):
    """Every record of a partition, and its high watermark."""
    records = []
    with RawClient(port) as client:
        while True:
            row = (topic, partition, records[-1][0] + 1 if records else 0, 8 << 20)
            (part,) = client.fetch(row)
            assert part.error_code == 0, part.error_code
            found = values_of(part.records, row[2])
            if not found:
                return records, part.high_watermark
            records += found


class Load:
    """Writers of three kinds and a reader for each partition; ``with`` starts and ends them."""

    def __init__(self, broker, topic, partitions=2, size=100):
        self.broker, self.topic, self.partitions = broker, topic, partitions
        self.history = history = History()
        self.writers, self.readers = [], []
        for index in range(partitions):
            at = (history, broker.port, topic, index)
            self.writers += [
                RawWriter(*at, f"raw{index}", idempotent=True, size=size),
                RawWriter(*at, f"plain{index}", idempotent=False, size=size),
                LibrdkafkaWriter(*at, f"rdkafka{index}", size=size),
            ]
            self.readers.append(Reader(*at, f"reader{index}"))

    def __enter__(self):
        for worker in (*self.writers, *self.readers):
            worker.start()
        return self

    def __exit__(self, kind, *_):
        for worker in (*self.writers, *self.readers):
            worker.stop()
        if kind is None:
            for worker in (*self.writers, *self.readers):
                worker.done()

    def wait_for_progress(self, count=200):
        """Until every writer has this many more acknowledgements."""
        counts = self.history.counts
        goals = {writer.name: counts[writer.name] + count for writer in self.writers}

        def reached():
            for worker in (*self.writers, *self.readers):
                if worker.failed is not None:
                    raise worker.failed
            return all(counts[name] >= goal for name, goal in goals.items())

        try:
            until(reached, "progress")
        except AssertionError as error:
            late = {w.name: w.trouble for w in self.writers if counts[w.name] < goals[w.name]}
            raise AssertionError(f"{late} did not go on") from error

    def check(self):
        """Hold the whole log against what was promised."""
        for index in range(self.partitions):
            records, high_watermark = whole_log(self.broker.port, self.topic, index)
            self.history.check(index, records, high_watermark)
