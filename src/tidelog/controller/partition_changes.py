"""Which partitions change when brokers come, go, stop or cannot write.  No I/O.

Each function looks at the metadata of the cluster and returns the new states of the partitions that
change; what becomes of one partition is in ``elections.py`` and ``reassignments.py``.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace

from tidelog.controller import elections, reassignments
from tidelog.controller.elections import NO_LEADER, target
from tidelog.controller.placement import fill_up
from tidelog.controller.store import Key
from tidelog.errors import ApiError, ErrorCode
from tidelog.metadata import ClusterMetadata, PartitionInfo, TopicInfo

log = logging.getLogger(__name__)

Changes = dict[Key, PartitionInfo]


def brokers_changed(
    metadata: ClusterMetadata,
    topics: Iterable[TopicInfo],
    unclean: Callable[[TopicInfo], bool],
    *,
    first: bool = False,
) -> Changes:
    """Elect leaders where brokers have come or gone; ``first`` after a controller is elected."""
    live = metadata.brokers.keys()
    changes: Changes = {}
    for topic in topics:
        unclean_here = unclean(topic)
        for i, info in enumerate(topic.partitions):
            if info.partition_epoch < 0:
                continue
            eligible = _not_restarted(metadata, info) if first else live
            after = elections.settle(info, eligible or live, unclean=unclean_here)
            if after is not info:
                changes[topic.name, i] = after
                warn_if_unclean((topic.name, i), info, after)
    return changes


def _not_restarted(metadata: ClusterMetadata, info: PartitionInfo) -> set[int]:
    """The members of the in-sync set that were registered when it was written, and still are.

    A broker that was restarted while there was no controller may have come back with less than it
    had.  It must not lead if another has everything.
    """
    brokers = metadata.brokers
    return {b for b in info.isr if b in brokers and brokers[b].epoch < info.written}


def missing_states(metadata: ClusterMetadata) -> list[tuple[TopicInfo, list[int]]]:
    """Topics whose partitions a controller had not yet written when it died: with these, and the
    indexes of the new ones.  A partition without a live replica waits for one."""
    changed = []
    for topic in metadata.topics.values():
        partitions, made = list(topic.partitions), []
        for i, info in enumerate(partitions):
            live = tuple(b for b in info.replicas if b in metadata.brokers)
            if info.partition_epoch < 0 and live:
                partitions[i] = PartitionInfo(live[0], 0, info.replicas, live)
                made.append(i)
        if made:
            changed.append((replace(topic, partitions=tuple(partitions)), made))
    return changed


def behind_the_logs(metadata: ClusterMetadata, epochs: Mapping[Key, int]) -> Changes:
    """Partitions whose logs have later leader epochs than the tree: these must not be used twice.

    So it is when Kafka has written the logs, or when the tree was lost.
    """
    return {
        (topic.name, i): replace(info, leader_epoch=latest + 1)
        for topic in metadata.topics.values()
        for i, info in enumerate(topic.partitions)
        if (latest := epochs.get((topic.name, i), -1)) > info.leader_epoch >= 0
    }


def broker_stops(metadata: ClusterMetadata, broker_id: int) -> Changes:
    """Another broker leads, where there is one, what a broker led that is about to stop."""
    live = metadata.brokers.keys()
    return _settled(
        ((topic.name, i), info, elections.settle(info, live, avoid=(broker_id,)))
        for topic in metadata.topics.values()
        for i, info in enumerate(topic.partitions)
        if broker_id in info.isr
    )


def cannot_write(
    metadata: ClusterMetadata, keys: Iterable[Key], failed: Mapping[int, Collection[Key]]
) -> Changes:
    """A broker that cannot write a partition neither leads it nor is in sync, if another can."""
    live = metadata.brokers.keys()
    changes: Changes = {}
    for key in keys:
        info = metadata.partition(key)
        if info is None:
            continue
        avoid = [broker for broker in info.isr if key in failed.get(broker, ())]
        after = elections.settle(info, live, avoid=avoid) if avoid else info
        if after is not info:
            changes[key] = after
    return changes


def _settled(decided: Iterable[tuple[Key, PartitionInfo, PartitionInfo]]) -> Changes:
    return {key: after for key, before, after in decided if after is not before}


# -- elections on demand --------------------------------------------------------


def elect(
    metadata: ClusterMetadata,
    keys: Iterable[Key] | None,
    *,
    unclean: bool,
    eligible: Callable[[Key], Collection[int]],
) -> tuple[dict[Key, ApiError | None], Changes]:
    """Elect preferred leaders, or with ``unclean`` any leader where there is none: the outcome for
    each partition, and the changes."""
    if keys is None:
        topics = metadata.topics.values()
        keys = [(topic.name, i) for topic in topics for i in range(len(topic.partitions))]
    results: dict[Key, ApiError | None] = {}
    changes: Changes = {}
    for key in keys:
        info = metadata.partition(key)
        if info is None:
            results[key] = ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
            continue
        if unclean:
            needed = info.leader == NO_LEADER
            after = elections.settle(info, metadata.brokers.keys(), unclean=True)
            failure = ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE
        else:
            needed = info.leader != elections.preferred_leader(info)
            after = elections.prefer(info, eligible(key))
            failure = ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE
        if not needed:
            results[key] = ApiError(ErrorCode.ELECTION_NOT_NEEDED)
        elif after is info:
            results[key] = ApiError(failure)
        else:
            results[key] = None
            changes[key] = after
            warn_if_unclean(key, info, after)
    return results, changes


def imbalance(metadata: ClusterMetadata, percentage: int) -> dict[int, list[Key]]:
    """Brokers for which more than this share of the partitions that prefer them have another
    leader, with these partitions."""
    preferring: dict[int, int] = {}
    elsewhere: dict[int, list[Key]] = {}
    for topic in metadata.topics.values():
        for i, info in enumerate(topic.partitions):
            preferred = elections.preferred_leader(info)
            preferring[preferred] = preferring.get(preferred, 0) + 1
            if info.leader != preferred and preferred in info.isr:
                elsewhere.setdefault(preferred, []).append((topic.name, i))
    return {
        broker: keys
        for broker, keys in elsewhere.items()
        if broker in metadata.brokers and 100 * len(keys) / preferring[broker] > percentage
    }


def warn_if_unclean(key: Key, before: PartitionInfo, after: PartitionInfo) -> None:
    if after.leader not in (NO_LEADER, *before.isr):
        message = "%s-%d: broker %d leads, which was not in sync: records may be lost"
        log.warning(message, *key, after.leader)


# -- reassignments --------------------------------------------------------------


def reassign(
    metadata: ClusterMetadata, wanted: Mapping[Key, tuple[int, ...] | None]
) -> tuple[dict[Key, ApiError | None], Changes]:
    """Begin reassignments, or with None cancel them: the outcome for each partition, and the
    changes."""
    results: dict[Key, ApiError | None] = {}
    changes: Changes = {}
    for key, replicas in wanted.items():
        info = metadata.partition(key)
        try:
            if info is None:
                text = f"there is no {key[0]}-{key[1]}"
                raise ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, text)
            after = reassignments.plan(info, replicas, metadata.brokers.keys())
            if after != info:
                changes[key] = after
            results[key] = None
        except ApiError as error:
            results[key] = error
    return results, changes


def finished_reassignments(metadata: ClusterMetadata, topics: Iterable[TopicInfo]) -> Changes:
    """The old replicas are removed where all the new ones are in sync."""
    live = metadata.brokers.keys()
    return {
        (topic.name, i): reassignments.finish(info, live)
        for topic in topics
        for i, info in enumerate(topic.partitions)
        if reassignments.can_finish(info)
    }


def missing_replicas(metadata: ClusterMetadata, name: str, factor: int) -> Changes:
    """An internal topic is created on first use, maybe before all brokers were there: those that
    come later get the replicas that it lacks."""
    topic = metadata.topics.get(name)
    if topic is None:
        return {}
    partitions = topic.partitions
    current = {i: target(info) for i, info in enumerate(partitions) if info.partition_epoch >= 0}
    wanted = fill_up(current, factor, sorted(metadata.brokers), metadata.racks())
    return {
        (name, i): reassignments.begin(partitions[i], replicas) for i, replicas in wanted.items()
    }
