"""The target assignment of a consumer group: who should have which partition, in which epoch.

What changes members, subscriptions or topics leaves a cause for the next epoch; ``update`` then
makes that epoch, with one run of the assignor however many causes there are.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from tidelog.clock import Clock
from tidelog.coordinators.groups.assignors import ASSIGNORS, NO_SLOTS, Wish
from tidelog.coordinators.groups.consumer_image import ConsumerGroupImage, RecordKind
from tidelog.coordinators.groups.consumer_members import ConsumerLimits
from tidelog.coordinators.groups.deadlines import Deadlines
from tidelog.coordinators.groups.timeline import Timeline
from tidelog.coordinators.groups.topic_regex import matching
from tidelog.errors import ApiError
from tidelog.metadata import ClusterMetadata, TopicInfo


@dataclass(slots=True)
class GroupContext:
    """What the parts of a consumer group share besides its image."""

    limits: ConsumerLimits
    clock: Clock
    metadata: Callable[[], ClusterMetadata]
    new_id: Callable[[], str]
    deadlines: Deadlines
    timeline: Timeline

    def note(self, image: ConsumerGroupImage, kind: str, member_id: str, cause: str) -> None:
        """Add an event to the timeline."""
        self.timeline.add(self.clock.now_ms(), kind, image.epoch, member_id, cause)


class TargetAssignment:
    """See the module."""

    def __init__(self, image: ConsumerGroupImage, context: GroupContext) -> None:
        self.updated_at = 0  # when the epoch grew
        self._image = image
        self._context = context
        self._cause: str | None = None  # why the epoch must grow
        self._topics_changed = False  # or subscriptions

    def because(self, cause: str) -> None:
        """The epoch must grow."""
        self._cause = self._cause or cause

    def topics_changed(self) -> None:
        """Topics or subscriptions have changed: the epoch may have to grow."""
        self._topics_changed = True

    def update(self) -> None:
        """A new epoch, if there is cause for one, and a target assignment for it."""
        image = self._image
        if self._topics_changed:
            self._topics_changed = False
            self._look_up_topics()
        if self._cause is None and (image.target_epoch == image.epoch or not image.members):
            return
        if self._cause is not None:
            image.epoch += 1
            image.mark("", RecordKind.GROUP)
            self.updated_at = self._context.deadlines.now()
            self._context.note(image, "epoch", "", self._cause)
            self._cause = None
        if image.members:
            self._assign()

    def _look_up_topics(self) -> None:
        image, topics = self._image, self._context.metadata().topics
        used = {m.regex for m in image.members.values() if m.regex}
        for pattern in sorted(image.regexes.keys() - used):
            del image.regexes[pattern]
            image.mark(pattern, RecordKind.REGEX)
        for pattern in sorted(used):
            names = self._match(pattern, topics)
            if image.regexes.get(pattern) != names:
                image.regexes[pattern] = names
                image.mark(pattern, RecordKind.REGEX)
        digest = hashlib.blake2b(digest_size=8)
        for name in sorted(image.subscribed()):
            if name in topics:
                digest.update(topics[name].topic_id)
                digest.update(len(topics[name].partitions).to_bytes(4, "big"))
        value = int.from_bytes(digest.digest(), "big", signed=True) if image.members else 0
        if value != image.metadata_hash:
            image.metadata_hash = value
            self.because("topics have changed")

    def _match(self, pattern: str, topics: Mapping[str, TopicInfo]) -> frozenset[str]:
        try:
            # Internal topics too, as in Kafka: a client that does not want them excludes them.
            return matching(pattern, topics)
        except ApiError:
            # Another broker accepted it: the topics that it matched stay.
            return self._image.regexes.get(pattern, frozenset())

    @property
    def assignor(self) -> str:
        """The assignor that most members ask for."""
        votes = Counter(m.assignor for m in self._image.members.values() if m.assignor)
        names = self._context.limits.assignors
        known = [name for name in votes if name in names]
        if not known:
            return names[0]
        return max(known, key=lambda name: (votes[name], -names.index(name)))

    def _assign(self) -> None:
        image, topics = self._image, self._context.metadata().topics
        sizes = {
            topics[name].topic_id: len(topics[name].partitions)
            for name in image.subscribed()
            if name in topics
        }
        ids: dict[frozenset[str], frozenset[bytes]] = {}
        wishes = {}
        for member_id, member in image.members.items():
            names = image.topics_of(member)
            if names not in ids:
                ids[names] = frozenset(topics[name].topic_id for name in names if name in topics)
            owned = image.targets.get(member_id, NO_SLOTS)
            wishes[member_id] = Wish(ids[names], owned, member.instance_id)
        for member_id, slots in ASSIGNORS[self.assignor](wishes, sizes).items():
            if image.targets.get(member_id) != slots:
                image.targets[member_id] = slots
                image.mark(member_id, RecordKind.TARGET)
        image.target_epoch = image.epoch
        image.mark("", RecordKind.TARGET_EPOCH)
