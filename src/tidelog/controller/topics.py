"""New topics and partitions: their names, and the brokers of their replicas.  No I/O."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace

from tidelog.errors import ApiError, ErrorCode, SettingError
from tidelog.ids import random_uuid
from tidelog.metadata import BrokerInfo, PartitionInfo, TopicInfo
from tidelog.new_topic import NewTopic
from tidelog.settings import Settings, check_topic_config
from tidelog.text import plural
from tidelog.topic_partition import check_name

MAX_NEW_PARTITIONS = 10_000  # in one request, as in Kafka: each is a directory


def colliding(name: str, existing: Iterable[str]) -> list[str]:
    """Names that monitoring tools cannot tell from this one: '.' and '_' look alike."""
    alike = name.replace(".", "_")
    return [
        other
        for other in existing
        if len(other) == len(name) and other != name and other.replace(".", "_") == alike
    ]


def spread(
    partitions: int,
    replication_factor: int,
    brokers: Sequence[int],
    first: int = 0,
    racks: Mapping[int, str | None] | None = None,
) -> list[list[int]]:
    """Round-robin leaders and followers; never two replicas on one broker, nor in one rack
    while there is another rack.

    ``first`` is the number of the first partition: those that are added later go on where the
    others ended.
    """
    if partitions <= 0:
        raise ApiError(
            ErrorCode.INVALID_PARTITIONS,
            f"a topic needs at least one partition, {partitions} were asked for",
        )
    if partitions > MAX_NEW_PARTITIONS:
        raise ApiError(
            ErrorCode.INVALID_PARTITIONS,
            f"{partitions} partitions were asked for: at most {MAX_NEW_PARTITIONS} at a time",
        )
    if replication_factor <= 0 or replication_factor > len(brokers):
        raise ApiError(
            ErrorCode.INVALID_REPLICATION_FACTOR,
            f"replication factor {replication_factor} with {len(brokers)} broker"
            f"{'' if len(brokers) == 1 else 's'}: use 1 to {len(brokers)}",
        )
    n = len(brokers)
    known = {racks.get(broker) for broker in brokers} if racks else set()
    if racks and len(known) > 1 and None not in known:
        circle = _alternating(brokers, racks)
        return [
            _spread_racks(circle, racks, partition + first, replication_factor)
            for partition in range(partitions)
        ]
    return [
        [brokers[(partition + first + replica) % n] for replica in range(replication_factor)]
        for partition in range(partitions)
    ]


def _alternating(brokers: Sequence[int], racks: Mapping[int, str | None]) -> list[int]:
    """The brokers in an order in which neighbours are in different racks, as far as it goes."""
    by_rack: dict[str, list[int]] = {}
    for broker in brokers:
        by_rack.setdefault(str(racks[broker]), []).append(broker)
    result: list[int] = []
    while any(by_rack.values()):
        for rack in sorted(by_rack):
            if by_rack[rack]:
                result.append(by_rack[rack].pop(0))
    return result


def _spread_racks(
    circle: Sequence[int], racks: Mapping[int, str | None], partition: int, count: int
) -> list[int]:
    """The leader comes from its turn in the circle; each follower is the next broker of a rack
    that has the fewest replicas.  From round to round the followers shift, so that the load of
    a dead leader falls on many."""
    n = len(circle)
    start = partition % n
    shift = partition // n
    chosen = [circle[start]]
    others = [circle[(start + 1 + (shift + i) % (n - 1)) % n] for i in range(n - 1)]
    while len(chosen) < count:
        used = [racks[broker] for broker in chosen]
        best = min(others, key=lambda broker: (used.count(racks[broker]), others.index(broker)))
        others.remove(best)
        chosen.append(best)
    return chosen


def check_assignment(assignment: Sequence[Sequence[int]], brokers: Sequence[int]) -> None:
    """Is a manual assignment possible?"""
    problem = ""
    for replicas in assignment:
        if not replicas:
            problem = "a partition has no replica"
        elif len(set(replicas)) != len(replicas):
            problem = f"{list(replicas)} names a broker twice"
        elif len(replicas) != len(assignment[0]):
            problem = "partitions differ in their number of replicas"
        elif unknown := [b for b in replicas if b not in brokers]:
            problem = f"there is no broker {unknown[0]}"
        if problem:
            raise ApiError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, f"replica assignment: {problem}")


def plan_topic(
    wanted: NewTopic,
    existing: Mapping[str, TopicInfo],
    brokers: Mapping[int, BrokerInfo],
    settings: Settings,
) -> TopicInfo:
    """The topic as it would be created, or the error that says exactly why not."""
    name = wanted.name
    check_name(name)
    if name in existing:
        raise ApiError(ErrorCode.TOPIC_ALREADY_EXISTS, f"topic {name!r} exists already")
    if alike := colliding(name, existing):
        raise ApiError(
            ErrorCode.INVALID_TOPIC_EXCEPTION,
            f"topic {name!r} cannot be told from {alike[0]!r} in metric names "
            "('.' and '_' look alike); choose another name",
        )
    try:
        check_topic_config(wanted.config)
    except SettingError as error:
        raise ApiError(ErrorCode.INVALID_CONFIG, str(error)) from error
    replicas = _assign(wanted, brokers, settings)
    partitions = tuple(new_partition(row, brokers) for row in replicas)
    return TopicInfo(name, wanted.topic_id or random_uuid(), partitions, wanted.config)


def _assign(
    wanted: NewTopic, brokers: Mapping[int, BrokerInfo], settings: Settings
) -> list[list[int]]:
    partitions, replication_factor = wanted.partitions, wanted.replication_factor
    if wanted.assignment:
        if partitions != -1 or replication_factor != -1:
            raise ApiError(
                ErrorCode.INVALID_REQUEST,
                "give either an assignment, or partitions and a replication factor",
            )
        check_assignment(wanted.assignment, sorted(brokers))
        return [list(replicas) for replicas in wanted.assignment]
    if partitions == -1:
        partitions = settings.partition_counts.get(wanted.name, settings["num.partitions"])
    if replication_factor == -1:
        replication_factor = settings["default.replication.factor"]
    return spread(partitions, replication_factor, sorted(brokers), racks=_racks(brokers))


def new_partition(replicas: Sequence[int], brokers: Collection[int]) -> PartitionInfo:
    """Every live replica is in sync: there is nothing yet that one could lack."""
    live = tuple(broker for broker in replicas if broker in brokers)
    return PartitionInfo(live[0], 0, tuple(replicas), live)


def plan_partitions(
    name: str,
    topic: TopicInfo | None,
    count: int,
    assignment: Sequence[Sequence[int]] | None,
    brokers: Mapping[int, BrokerInfo],
) -> TopicInfo:
    """A topic with more partitions, ``count`` in all, or the error that says why not."""
    if topic is None:
        raise ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no topic {name!r}")
    have = len(topic.partitions)
    if count <= have:
        raise ApiError(
            ErrorCode.INVALID_PARTITIONS,
            f"topic {name!r} has {plural(have, 'partition')} already; it can only grow",
        )
    if assignment is not None:
        if len(assignment) != count - have:
            raise ApiError(
                ErrorCode.INVALID_REPLICA_ASSIGNMENT,
                f"{plural(count - have, 'new partition')} but "
                f"{plural(len(assignment), 'assignment')}",
            )
        check_assignment(assignment, sorted(brokers))
        new = [list(replicas) for replicas in assignment]
    else:
        factor = len(topic.partitions[0].replicas)
        new = spread(count - have, factor, sorted(brokers), first=have, racks=_racks(brokers))
    added = tuple(new_partition(replicas, brokers) for replicas in new)
    return replace(topic, partitions=topic.partitions + added)


def _racks(brokers: Mapping[int, BrokerInfo]) -> dict[int, str | None]:
    return {broker: info.rack for broker, info in brokers.items()}
