"""Where replicas should be: a plan that moves as few as it can.  No I/O.

For ``tidelog topics reassign``: after brokers were added, or before some are taken away.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence

from tidelog.controller.topics import spread
from tidelog.errors import ApiError, ErrorCode

Key = tuple[str, int]
Replicas = tuple[int, ...]


def plan(
    current: Mapping[Key, Replicas],
    brokers: Collection[int],
    racks: Mapping[int, str | None] | None = None,
) -> dict[Key, Replicas]:
    """New replicas for the partitions that have to move, so that every broker has its share.

    A replica stays where it is, unless its broker is not among ``brokers`` or has more than
    its share.  Replicas of a partition are on different brokers, and in as many racks as before
    or more where that is possible.  The first replica is the preferred leader: every broker has
    its share of these too, by changing the order, which copies nothing.
    """
    racks = racks or {}
    for key, replicas in current.items():
        if len(replicas) > len(brokers):
            raise ApiError(
                ErrorCode.INVALID_REPLICATION_FACTOR,
                f"{key[0]}-{key[1]} has {len(replicas)} replicas, for {len(brokers)} brokers",
            )
    load = dict.fromkeys(sorted(brokers), 0)
    for replicas in current.values():
        for broker in replicas:
            if broker in load:
                load[broker] += 1
    after = {key: list(current[key]) for key in _mixed(current)}
    for replicas_now in after.values():
        for i, broker in enumerate(replicas_now):
            if broker not in load:
                new = _best(load, replicas_now, i, racks)
                replicas_now[i] = new
                load[new] += 1
    _level(after, load, racks)
    _spread_leaders(after, load)
    return {key: tuple(row) for key, row in sorted(after.items()) if tuple(row) != current[key]}


def _mixed(keys: Collection[Key]) -> list[Key]:
    """In an order whose every part has its share of each topic: what comes first is moved first,
    and a new broker shall not get one topic only."""
    counts = Counter(name for name, _ in keys)
    return sorted(keys, key=lambda key: (key[1] / counts[key[0]], key))


def _best(
    load: Mapping[int, int], replicas: list[int], place: int, racks: Mapping[int, str | None]
) -> int:
    """The broker with the least, in a rack of its own if there is one."""
    others = [broker for i, broker in enumerate(replicas) if i != place]
    used = [racks.get(broker) for broker in others]
    free = [broker for broker in load if broker not in replicas]
    return min(free, key=lambda b: (used.count(racks.get(b)) if racks.get(b) else 0, load[b], b))


def _level(
    after: Mapping[Key, list[int]], load: dict[int, int], racks: Mapping[int, str | None]
) -> None:
    """Move replicas from the broker with most to the one with least, until they differ by one."""
    for replicas in after.values():
        for i in range(len(replicas) - 1, -1, -1):
            fullest = max(load.values())
            if load[replicas[i]] < fullest or fullest - min(load.values()) <= 1:
                continue
            rest = [racks.get(b) for j, b in enumerate(replicas) if j != i]
            here = rest.count(racks.get(replicas[i])) if racks.get(replicas[i]) else 0
            for broker in sorted(load, key=lambda b: (load[b], b)):
                if load[broker] >= fullest - 1:
                    break
                there = rest.count(racks.get(broker)) if racks.get(broker) else 0
                if broker not in replicas and there <= here:
                    load[replicas[i]] -= 1
                    load[broker] += 1
                    replicas[i] = broker
                    break


def _spread_leaders(after: Mapping[Key, list[int]], load: Mapping[int, int]) -> None:
    """Let others come first, until no broker leads two more than one that could take over."""
    led: dict[int, list[Key]] = {broker: [] for broker in load}
    for key, replicas in after.items():
        led[replicas[0]].append(key)
    while chain := _chain(after, led):
        for key, taker in chain:
            replicas = after[key]
            led[replicas[0]].remove(key)
            led[taker].append(key)
            replicas.remove(taker)
            replicas.insert(0, taker)


def _chain(after: Mapping[Key, list[int]], led: Mapping[int, list[Key]]) -> list[tuple[Key, int]]:
    """How the broker that leads most gives one to the one that leads least: new leaders.

    The two may have no partition in common: then others between them take one and give one.
    """
    for giver in sorted(led, key=lambda b: (-len(led[b]), b)):
        ways: dict[int, list[tuple[Key, int]]] = {giver: []}
        for broker in (queue := [giver]):
            for key in led[broker]:
                for taker in after[key][1:]:
                    if taker not in ways:
                        ways[taker] = [*ways[broker], (key, taker)]
                        queue.append(taker)
                if len(ways) == len(led):
                    break
        taker = min(ways, key=lambda b: (len(led[b]), len(ways[b]), b))
        if len(led[taker]) < len(led[giver]) - 1:
            return ways[taker]
    return []


def fill_up(
    current: Mapping[int, Replicas],
    factor: int,
    brokers: Sequence[int],
    racks: Mapping[int, str | None],
) -> dict[int, Replicas]:
    """Replicas for the partitions of a topic that has fewer than ``factor``, as far as there are
    brokers; no broker loses one.

    Where it is possible they stand as in a new topic: leaders are spread over brokers and racks.
    """
    factor = min(factor, len(brokers))
    if all(len(replicas) >= factor for replicas in current.values()):
        return {}
    found: dict[int, Replicas] = {}
    for i, wanted in enumerate(spread(max(current) + 1, factor, brokers, racks=racks)):
        replicas = current.get(i, ())
        if 0 < len(replicas) < factor:
            others = [broker for broker in wanted if broker not in replicas]
            kept = len(others) + len(replicas) == len(wanted)
            found[i] = tuple(wanted if kept else [*replicas, *others][:factor])
    return found
