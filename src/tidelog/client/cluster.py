"""A cluster seen from outside: which brokers there are, and which one to ask.

    with Cluster("localhost:9092") as cluster:
        for topic in cluster.metadata().topics.values(): ...

Connections are opened when they are first needed and kept.  A connection that fails is
dropped and the error is raised; the next call opens a new one.  Nothing is retried behind
the caller's back but the wait for a leader or a controller that is being elected.
"""

from __future__ import annotations

import difflib
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import TypeVar

from tidelog import workers
from tidelog.client.connection import (
    CLIENT_ID,
    CONNECT_TIMEOUT,
    REQUEST_TIMEOUT,
    BrokerConnection,
    BrokerUnreachable,
    CannotConnect,
    format_address,
    parse_address,
)
from tidelog.clock import Clock, SystemClock
from tidelog.errors import ApiError, ErrorCode, describe
from tidelog.topic_partition import TopicPartition
from tidelog.wire.messages.metadata import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    MetadataResponseTopic,
)
from tidelog.wire.schema import ZERO_UUID, Message

R = TypeVar("R", bound=Message)

NO_LEADER = -1
_FIRST_PAUSE, _LONGEST_PAUSE = 0.05, 1.0
_GREETED_AT_ONCE = 16

# The metadata is out of date: another broker leads now, or will soon.
LEADER_MOVED = frozenset(
    {
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.REPLICA_NOT_AVAILABLE,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
        ErrorCode.OFFSET_NOT_AVAILABLE,
    }
)
# These say that a topic is not there (any more), or not under this id.
TOPIC_GONE = frozenset(
    {
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.INCONSISTENT_TOPIC_ID,
    }
)


@dataclass(frozen=True, slots=True)
class BrokerView:
    """A broker and where it listens."""

    broker_id: int
    host: str
    port: int
    rack: str | None = None

    @property
    def address(self) -> str:
        return format_address(self.host, self.port)


@dataclass(frozen=True, slots=True)
class PartitionView:
    """Who leads a partition, and who follows."""

    index: int
    leader: int
    leader_epoch: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    offline: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class TopicView:
    """A topic; with an error it has no partitions."""

    name: str
    topic_id: bytes
    internal: bool
    partitions: tuple[PartitionView, ...]
    error: ErrorCode

    def leader_of(self, partition: int) -> int:
        """The broker that leads a partition; -1 while there is none."""
        count = len(self.partitions)
        if 0 <= partition < count and self.partitions[partition].index == partition:
            return self.partitions[partition].leader
        for view in self.partitions:  # a number is missing, which no broker should say
            if view.index == partition:
                return view.leader
        numbers = "only partition 0" if count == 1 else f"partitions 0 to {count - 1}"
        raise ApiError(
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            f"topic {self.name!r} has no partition {partition}; it has {numbers}",
        )


@dataclass(frozen=True, slots=True)
class Metadata:
    """What one broker says about the cluster."""

    cluster_id: str | None = None
    controller_id: int = -1
    brokers: dict[int, BrokerView] = field(default_factory=dict)
    topics: dict[str, TopicView] = field(default_factory=dict)


class Cluster:
    """See the module."""

    def __init__(
        self,
        bootstrap: str,
        *,
        client_id: str = CLIENT_ID,
        connect_timeout: float = CONNECT_TIMEOUT,
        timeout: float = REQUEST_TIMEOUT,
        patience: float = 10.0,
        clock: Clock | None = None,
    ) -> None:
        """``patience``: how many seconds to wait for a leader or a controller."""
        try:
            self.bootstrap = [parse_address(part) for part in bootstrap.split(",") if part.strip()]
        except ValueError as error:
            raise ApiError(ErrorCode.INVALID_REQUEST, f"bootstrap: {error}") from None
        if not self.bootstrap:
            message = "bootstrap: no address is given; write host:port,host:port"
            raise ApiError(ErrorCode.INVALID_REQUEST, message)
        self._client_id = client_id
        self._connect_timeout = connect_timeout
        self._timeout = timeout
        self._patience = patience
        self._clock = clock or SystemClock()
        self.coordinators: dict[str, int] = {}  # of groups, as far as they are known
        self._brokers: dict[int, BrokerView] = {}
        self._connections: dict[tuple[str, int], BrokerConnection] = {}

    def close(self) -> None:
        for connection in self._connections.values():
            connection.close()
        self._connections.clear()

    def __enter__(self) -> Cluster:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # -- connections ------------------------------------------------------------

    def connect(self, host: str, port: int) -> BrokerConnection:
        """A connection to an address; the one we have, if it is open."""
        found = self._connections.get((host, port))
        if found is None or found.closed:
            found = self._connections[host, port] = self._new_connection(host, port)
        return found

    def _new_connection(
        self, host: str, port: int, timeout: float | None = None
    ) -> BrokerConnection:
        return BrokerConnection(
            host,
            port,
            client_id=self._client_id,
            connect_timeout=self._connect_timeout,
            timeout=timeout or self._timeout,
        )

    def any_connection(self) -> BrokerConnection:
        """A connection to any broker: an open one, a known one, a bootstrap address."""
        for connection in self._connections.values():
            if not connection.closed:
                return connection
        known = [(broker.host, broker.port) for broker in self._brokers.values()]
        errors: dict[str, BrokerUnreachable] = {}
        for host, port in dict.fromkeys([*self.bootstrap, *known]):
            try:
                return self.connect(host, port)
            except BrokerUnreachable as error:
                errors[format_address(host, port)] = error
        if len(errors) == 1:
            raise next(iter(errors.values()))
        reasons = "; ".join(
            str(error).removeprefix("cannot reach a broker at ") for error in errors.values()
        )
        raise CannotConnect(f"cannot reach any broker: {reasons}")

    def connection_to(self, broker_id: int) -> BrokerConnection:
        """A connection to a broker by its number."""
        broker = self._broker(broker_id)
        return self.connect(broker.host, broker.port)

    def open(self, broker_id: int) -> BrokerConnection:
        """A connection to a broker for the caller alone, for requests that wait."""
        broker = self._broker(broker_id)
        return self._new_connection(broker.host, broker.port)

    def silent(self, brokers: Iterable[int]) -> set[int]:
        """Those that do not answer, though others may still name them; all are asked at once."""

        def is_silent(broker_id: int) -> bool:
            broker = self._brokers.get(broker_id)
            if broker is None:
                return True
            try:
                # A broker that is up sends its first answer as fast as it accepts.
                self._new_connection(broker.host, broker.port, self._connect_timeout).close()
            except BrokerUnreachable:
                return True
            return False

        asked = sorted(set(brokers))
        with workers.pool(_GREETED_AT_ONCE, "greet") as threads:
            answers = zip(asked, threads.map(is_silent, asked), strict=True)
            return {broker_id for broker_id, silent in answers if silent}

    def _broker(self, broker_id: int) -> BrokerView:
        broker = self._brokers.get(broker_id)
        if broker is None:
            self.metadata([])
            broker = self._brokers.get(broker_id)
        if broker is None:
            known = ", ".join(map(str, sorted(self._brokers))) or "none"
            raise ApiError(
                ErrorCode.BROKER_NOT_AVAILABLE,
                f"there is no broker {broker_id}; there are: {known}",
            )
        return broker

    # -- asking -----------------------------------------------------------------

    def ask(
        self,
        message: Message,
        answer: type[R],
        *,
        broker: int | None = None,
        at_most: int | None = None,
    ) -> R:
        """Ask one broker, or any."""
        connection = self.any_connection() if broker is None else self.connection_to(broker)
        return connection.request(message, answer, at_most=at_most)

    def controller(self) -> int:
        """The broker that is the controller now; waits for an election."""
        for _ in self.attempts():
            controller = self.metadata([]).controller_id
            if controller >= 0:
                return controller
        raise ApiError(ErrorCode.NOT_CONTROLLER, "the cluster has no controller; try again later")

    def attempts(self) -> Iterator[int]:
        """Try, pause a little longer each time, and give up when patience runs out."""
        deadline = self._clock.monotonic() + self._patience
        pause, count = _FIRST_PAUSE, 0
        while True:
            yield count
            count += 1
            if self._clock.monotonic() + pause > deadline:
                return
            time.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)

    # -- metadata ---------------------------------------------------------------

    def metadata(self, topics: Iterable[str] | None = None, *, create: bool = False) -> Metadata:
        """Brokers and topics: all of them, those named, or none (an empty list).

        With ``create`` a missing topic is made, if the broker allows that.
        """
        rows = None
        if topics is not None:
            rows = [MetadataRequestTopic(name=name) for name in topics]
        request = MetadataRequest(topics=rows, allow_auto_topic_creation=create)
        response = self.ask(request, MetadataResponse)
        if response.error_code:
            raise error_of(response.error_code)
        self._brokers = {
            row.node_id: BrokerView(row.node_id, row.host, row.port, row.rack)
            for row in response.brokers
        }
        return Metadata(
            response.cluster_id,
            response.controller_id,
            self._brokers,
            {row.name: _view(row) for row in response.topics if row.name is not None},
        )

    def topic_names(self) -> list[str]:
        """All topics but the brokers' own."""
        return [view.name for view in self.metadata().topics.values() if not view.internal]

    def topics(self, names: Iterable[str]) -> dict[str, TopicView]:
        """These topics, or an error that names the first one that is not there."""
        found = self.metadata(list(dict.fromkeys(names))).topics
        for view in found.values():
            check_topic(view)
        return found

    def by_leader(self, partitions: Iterable[TopicPartition]) -> dict[int, list[TopicPartition]]:
        """Who is to be asked about which partition; those without a leader are under -1."""
        wanted = list(partitions)
        topics = self.topics(row.topic for row in wanted)
        result: dict[int, list[TopicPartition]] = {}
        for row in wanted:
            leader = topics[row.topic].leader_of(row.partition)
            result.setdefault(leader, []).append(row)
        return result


def check_topic(topic: TopicView) -> None:
    """Raise what is wrong with a topic, in a sentence that names it."""
    if topic.error in TOPIC_GONE:
        raise no_topic(topic.name)
    if topic.error and topic.error not in LEADER_MOVED:
        raise error_of(topic.error, None, f"topic {topic.name!r}")


def no_topic(name: str, names: Iterable[str] = ()) -> ApiError:
    """There is no such topic; perhaps there is one among ``names`` that is spelt nearly so."""
    by_lower = {row.lower(): row for row in names}
    close = difflib.get_close_matches(name.lower(), by_lower, n=1)
    hint = f"see `tidelog topics list`, or make it with `tidelog topics create {name}`"
    if close:
        hint = f"did you mean {by_lower[close[0]]!r}?"
    return ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no topic {name!r}; {hint}")


def error_of(code: int, message: str | None = None, subject: str = "") -> ApiError:
    """An error from a broker; ``subject`` names what it is about, if it has no message."""
    known = ErrorCode(code) if code in ErrorCode.__members__.values() else None
    text = message or (f"{subject}: {describe(code)}" if subject else describe(code))
    return ApiError(known or ErrorCode.UNKNOWN_SERVER_ERROR, text)


def _view(row: MetadataResponseTopic) -> TopicView:
    partitions = [
        PartitionView(
            part.partition_index,
            part.leader_id,
            part.leader_epoch,
            tuple(part.replica_nodes),
            tuple(part.isr_nodes),
            tuple(part.offline_replicas),
        )
        for part in row.partitions
    ]
    return TopicView(
        row.name or "",
        row.topic_id or ZERO_UUID,
        row.is_internal,
        tuple(sorted(partitions, key=lambda part: part.index)),
        error_of(row.error_code).code if row.error_code else ErrorCode.NONE,
    )
