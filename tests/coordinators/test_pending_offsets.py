"""Offsets that are committed inside transactions: which count, and from when on."""

from __future__ import annotations

from typing import NamedTuple

import pytest
from support.log import generator

from tidelog.coordinators.groups.offset_store import OffsetStore
from tidelog.coordinators.groups.records import (
    OffsetCommitKey,
    OffsetCommitValue,
)


class Event(NamedTuple):
    """One record of the log: ``txn`` and ``plain`` commit an offset, ``gone`` is a tombstone."""

    kind: str
    producer: int = -1
    offset: int = -1
    group: str = "g"
    topic: str = "t"

    @property
    def key(self) -> tuple[str, str]:
        return self.group, self.topic


def replayed(events: dict[int, Event]) -> OffsetStore:
    """The store after the records at these offsets of a log."""
    store = OffsetStore()
    for position, event in sorted(events.items()):
        key = OffsetCommitKey(group=event.group, topic=event.topic, partition=0)
        value = OffsetCommitValue(
            offset=event.offset, metadata="", commit_timestamp=0, leader_epoch=-1
        )
        if event.kind == "txn":
            store.replay_transactional(event.producer, key, value, position)
        elif event.kind in ("plain", "gone"):
            store.replay(key, value if event.kind == "plain" else None, "", 0)
        else:
            store.end_transaction(event.producer, committed=event.kind == "commit")
    return store


def offset(store: OffsetStore, group: str = "g", topic: str = "t") -> int | None:
    offsets = store.groups.get(group)
    found = offsets.get(topic, 0) if offsets else None
    return None if found is None else found.offset


@pytest.mark.parametrize(
    ("events", "expected", "pending"),
    [
        ([Event("txn", 1, 5)], None, True),
        ([Event("plain", -1, 3), Event("txn", 1, 5)], 3, True),
        ([Event("plain", -1, 3), Event("txn", 1, 5), Event("commit", 1)], 5, False),
        ([Event("plain", -1, 3), Event("txn", 1, 5), Event("abort", 1)], 3, False),
        ([Event("txn", 1, 5), Event("txn", 1, 6), Event("commit", 1)], 6, False),
        # The end of another transaction, or of one that has committed nothing here.
        ([Event("txn", 1, 5), Event("commit", 2)], None, True),
        # A later record wins, whatever comes first to its end.
        ([Event("txn", 1, 5), Event("plain", -1, 4)], 4, True),
        ([Event("txn", 1, 5), Event("plain", -1, 4), Event("commit", 1)], 4, False),
        (
            [Event("txn", 1, 5), Event("txn", 2, 6), Event("commit", 2), Event("commit", 1)],
            6,
            False,
        ),
        (
            [Event("txn", 1, 5), Event("txn", 2, 6), Event("commit", 1), Event("commit", 2)],
            6,
            False,
        ),
        ([Event("txn", 1, 5), Event("txn", 2, 6), Event("abort", 2), Event("commit", 1)], 5, False),
        ([Event("txn", 1, 5), Event("txn", 2, 6), Event("commit", 1)], 5, True),
        # Two transactions of one producer, one after the other.
        ([Event("txn", 1, 5), Event("abort", 1), Event("txn", 1, 6), Event("commit", 1)], 6, False),
        # What is deleted does not come back with the marker.
        ([Event("txn", 1, 5), Event("gone"), Event("commit", 1)], None, False),
    ],
)
def test_stories(events: list[Event], expected: int | None, pending: bool) -> None:
    store = replayed(dict(enumerate(events)))
    assert offset(store) == expected
    assert store.pending.places("g") == ({("t", 0)} if pending else set())
    assert store.uses("g") == (expected is not None or pending)


def test_random_histories_mean_the_same_after_compaction() -> None:
    """Of each key compaction keeps the last record that is not aborted, and every marker."""
    rng = generator("pending offsets")
    for _ in range(300):
        events: dict[int, Event] = {}
        open_: dict[int, list[int]] = {}  # producer -> positions of its records
        aborted: set[int] = set()
        for position in range(rng.randrange(1, 40)):
            kind = rng.choice(["txn", "txn", "txn", "plain", "commit", "abort", "gone"])
            producer = rng.randrange(3)
            place = {"group": rng.choice("gh"), "topic": rng.choice("tu")}
            if kind in ("commit", "abort"):
                positions = open_.pop(producer, [])
                aborted |= set(positions) if kind == "abort" else set()
                place = {}
            elif kind == "txn":
                open_.setdefault(producer, []).append(position)
            else:
                producer = -1
            events[position] = Event(kind, producer, 100 + position, **place)
        undecided = {position for positions in open_.values() for position in positions}
        stable = min(undecided, default=len(events))  # nothing from here on is compacted
        last = {
            event.key: position
            for position, event in events.items()
            if event.kind in ("txn", "plain", "gone")
            and position not in aborted
            and position < stable
        }
        kept = {
            position: event
            for position, event in events.items()
            if position >= stable
            or event.kind in ("commit", "abort")
            or (position not in aborted and last[event.key] == position)
        }
        whole, compacted = replayed(events), replayed(kept)
        for group in "gh":
            for topic in "tu":
                assert offset(whole, group, topic) == offset(compacted, group, topic), events
            assert whole.pending.places(group) == compacted.pending.places(group), events
