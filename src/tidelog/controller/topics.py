"""The rules of topics: names that collide, assignments.  Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from tidelog.errors import ApiError, ErrorCode

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
