"""The server-side assignors of KIP-848: which member gets which partition.  Pure functions.

An assignor takes what each member subscribes to and had before, and how many partitions each
topic has; it gives each member a set of partitions.  The same input gives the same output.

    uniform   all members get the same number, give or take one, and keep what they had
    range     each topic is cut into contiguous ranges, in the order of the members, so that
              partition N of two topics with the same subscribers goes to the same member
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Callable, Mapping
from typing import NamedTuple

Slot = tuple[bytes, int]  # topic id, partition
Slots = frozenset[Slot]
NO_SLOTS: Slots = frozenset()


class Wish(NamedTuple):
    """What one member brings to the assignment."""

    topics: frozenset[bytes]  # topic ids
    owned: Slots = NO_SLOTS  # what it was meant to have so far
    instance_id: str | None = None


Wishes = Mapping[str, Wish]  # by member id
Sizes = Mapping[bytes, int]  # topic id -> partitions
Assignor = Callable[[Wishes, Sizes], dict[str, Slots]]


def uniform(wishes: Wishes, sizes: Sizes) -> dict[str, Slots]:
    """Balanced and sticky."""
    topics = _topics(wishes, sizes)
    if all(wish.topics & sizes.keys() == topics.keys() for wish in wishes.values()):
        return _uniform_same(wishes, sizes)
    return _uniform_mixed(wishes, sizes, topics)


def _topics(wishes: Wishes, sizes: Sizes) -> dict[bytes, list[str]]:
    """The topics that exist, and who wants them, in a fixed order."""
    found: dict[bytes, list[str]] = defaultdict(list)
    for member_id in sorted(wishes):
        for topic in wishes[member_id].topics:
            if topic in sizes:
                found[topic].append(member_id)
    return dict(sorted(found.items()))


def _uniform_same(wishes: Wishes, sizes: Sizes) -> dict[str, Slots]:
    """All members want the same topics: quotas, no search."""
    if not wishes:
        return {}
    topics = next(iter(wishes.values())).topics & sizes.keys()
    free = {(topic, index) for topic in topics for index in range(sizes[topic])}
    quota, extra = divmod(len(free), len(wishes))
    kept: dict[str, set[Slot]] = {}
    # The members with most may keep one more than the quota, so that the fewest partitions move.
    order = sorted(wishes, key=lambda m: (-len(wishes[m].owned & free), m))
    limits = {}
    for place, member_id in enumerate(order):
        limits[member_id] = quota + (place < extra)
        mine = sorted(wishes[member_id].owned & free)[: limits[member_id]]
        kept[member_id] = set(mine)
        free.difference_update(mine)
    left = sorted(free, key=lambda slot: (slot[1], slot[0]), reverse=True)
    for member_id in sorted(wishes):
        mine_now = kept[member_id]
        while len(mine_now) < limits[member_id]:
            mine_now.add(left.pop())
    return {member_id: frozenset(slots) for member_id, slots in kept.items()}


def _uniform_mixed(
    wishes: Wishes, sizes: Sizes, topics: Mapping[bytes, list[str]]
) -> dict[str, Slots]:
    """Different subscriptions: keep what can stay, give the rest to the member that has least, then
    move single partitions while that makes two members more equal."""
    result: dict[str, set[Slot]] = {member_id: set() for member_id in wishes}
    owner: dict[Slot, str] = {}
    for member_id in sorted(wishes):
        wish = wishes[member_id]
        for slot in wish.owned:
            topic, index = slot
            if topic in wish.topics and index < sizes.get(topic, 0) and slot not in owner:
                owner[slot] = member_id
                result[member_id].add(slot)
    # Topics with few subscribers first: they have the least choice.
    for topic in sorted(topics, key=lambda t: (len(topics[t]), t)):
        heap = [(len(result[m]), m) for m in topics[topic]]
        heapq.heapify(heap)
        for index in range(sizes[topic]):
            if (topic, index) not in owner:
                count, member_id = heap[0]
                owner[topic, index] = member_id
                result[member_id].add((topic, index))
                heapq.heapreplace(heap, (count + 1, member_id))
    moved = True
    while moved:  # each move makes the sum of squares smaller, so this ends
        moved = False
        for topic, members in topics.items():
            moved |= _level(topic, members, sizes[topic], owner, result)
    return {member_id: frozenset(slots) for member_id, slots in result.items()}


def _level(
    topic: bytes,
    members: list[str],
    size: int,
    owner: dict[Slot, str],
    result: dict[str, set[Slot]],
) -> bool:
    """Move partitions of one topic from members with many to members with few."""
    moved = False
    heap = [(len(result[m]), m) for m in members]
    heapq.heapify(heap)
    for index in sorted(range(size), key=lambda i: -len(result[owner[topic, i]])):
        count, least = heap[0]
        while count != len(result[least]):  # it has given something away since
            heapq.heapreplace(heap, (len(result[least]), least))
            count, least = heap[0]
        giver = owner[topic, index]
        if len(result[giver]) - count < 2:
            continue
        result[giver].discard((topic, index))
        result[least].add((topic, index))
        owner[topic, index] = least
        heapq.heapreplace(heap, (count + 1, least))
        moved = True
    return moved


def range_(wishes: Wishes, sizes: Sizes) -> dict[str, Slots]:
    """Contiguous ranges; the first members get one more where it does not divide."""
    result: dict[str, set[Slot]] = {member_id: set() for member_id in wishes}
    for topic, members in _topics(wishes, sizes).items():
        quota, extra = divmod(sizes[topic], len(members))
        start = 0
        # Static members first, by instance id: their place survives a restart.
        for place, member_id in enumerate(sorted(members, key=lambda m: _rank(m, wishes[m]))):
            end = start + quota + (place < extra)
            result[member_id].update((topic, index) for index in range(start, end))
            start = end
    return {member_id: frozenset(slots) for member_id, slots in result.items()}


def _rank(member_id: str, wish: Wish) -> tuple[bool, str]:
    return wish.instance_id is None, wish.instance_id or member_id


ASSIGNORS: dict[str, Assignor] = {"uniform": uniform, "range": range_}
