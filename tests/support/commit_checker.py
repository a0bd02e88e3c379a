"""A member of a group that reads, commits, and remembers what it was told.

A commit that was acknowledged stands, whichever broker coordinates: neither an OffsetFetch nor
the first record after a rebalance may be from before it.  A commit without an answer may have
happened or not.
"""

from __future__ import annotations

import threading
from collections import Counter

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition
from support.waiting import until

# What a commit may meet while the coordinator is on its way to another broker.
_MOVING = {
    KafkaError._WAIT_COORD,
    KafkaError._TRANSPORT,
    KafkaError._TIMED_OUT,
    KafkaError._DESTROY_BROKER,
    KafkaError.NOT_COORDINATOR,
    KafkaError.COORDINATOR_NOT_AVAILABLE,
    KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
    KafkaError.REQUEST_TIMED_OUT,
    KafkaError.REBALANCE_IN_PROGRESS,
    KafkaError.ILLEGAL_GENERATION,
    KafkaError.UNKNOWN_MEMBER_ID,
    KafkaError.UNKNOWN_TOPIC_OR_PART,
}


class Committer:
    """See the module; ``with`` runs it in a thread of its own."""

    def __init__(self, bootstrap: str, group: str, topic: str) -> None:
        self._bootstrap, self._group, self._topic = bootstrap, group, topic
        self.committed: dict[int, int] = {}  # partition -> offset that was acknowledged
        self.tried: dict[int, int] = {}  # partition -> the highest that was asked for
        self.count = 0  # commits that were acknowledged
        self.moving: Counter[str] = Counter()  # errors that a client has to live with
        self.failed: BaseException | None = None
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def _consumer(self) -> Consumer:
        return Consumer(
            {
                "bootstrap.servers": self._bootstrap,
                "group.id": self._group,
                "enable.auto.commit": False,
                "auto.offset.reset": "earliest",
            }
        )

    # -- the member ---------------------------------------------------------------

    def _run(self) -> None:
        consumer = self._consumer()
        try:
            consumer.subscribe([self._topic])
            while not self._over.is_set():
                latest: dict[int, Message] = {}
                for message in consumer.consume(100, timeout=0.5):
                    if message.error() is None:
                        self._check(message)
                        latest[message.partition()] = message
                if latest:
                    self._commit(consumer, latest)
        except BaseException as error:
            self.failed = error
        finally:
            consumer.close()

    def _check(self, message: Message) -> None:
        known = self.committed.get(message.partition(), 0)
        assert message.offset() >= known, (
            f"partition {message.partition()}: {known} was committed, "
            f"and the group reads from {message.offset()}"
        )

    def _commit(self, consumer: Consumer, latest: dict[int, Message]) -> None:
        rows = [
            TopicPartition(self._topic, partition, message.offset() + 1)
            for partition, message in latest.items()
        ]
        for row in rows:
            self.tried[row.partition] = max(row.offset, self.tried.get(row.partition, 0))
        try:
            answered = consumer.commit(offsets=rows, asynchronous=False)
        except KafkaException as error:
            self._excuse(error.args[0])
            return
        for row in answered:
            if row.error is None:
                self.committed[row.partition] = row.offset
                self.count += 1
            else:
                self._excuse(row.error)

    def _excuse(self, error: KafkaError) -> None:
        assert error.code() in _MOVING or error.retriable(), f"a commit: {error}"
        self.moving[error.name()] += 1

    def __enter__(self) -> Committer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()
        if self.failed is not None:
            raise self.failed

    def more(self, count: int = 3) -> None:
        """Wait until so many more commits are acknowledged."""
        goal = self.count + count
        until(lambda: self.count >= goal or self.failed, f"{count} more commits")
        if self.failed is not None:
            raise self.failed

    # -- somebody who looks --------------------------------------------------------

    def check(self) -> None:
        """What the group has committed, as a stranger is told, is not from before."""
        known = dict(self.committed)
        looker = self._consumer()
        try:
            places = [TopicPartition(self._topic, partition) for partition in known]
            found = looker.committed(places, timeout=200) if places else []
        finally:
            looker.close()
        for row in found:
            assert row.error is None, row.error
            most = self.tried[row.partition]
            assert known[row.partition] <= row.offset <= most, (
                f"partition {row.partition}: {known[row.partition]} was committed, at most "
                f"{most} was asked for, and {row.offset} is what the group has"
            )
