"""The partitions on this broker, and the upkeep of their logs.

``take`` and ``drop`` make them what the controller decides.  Upkeep that takes time (syncing,
unlinking) runs in helper threads; the event loop only decides.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from collections import deque
from collections.abc import Callable

from tidelog import files, workers
from tidelog.clock import Clock
from tidelog.errors import ApiError, ErrorCode
from tidelog.files import remove
from tidelog.log import descriptors
from tidelog.log.manager import LogManager
from tidelog.log.segment import let_go_of_maps
from tidelog.metadata import ClusterMetadata, PartitionInfo, TopicInfo
from tidelog.partition.flushing import Flushes
from tidelog.partition.leader import Leader
from tidelog.partition.log_dirs import LogDirs
from tidelog.partition.partition import Partition
from tidelog.rate_limited_log import DiskTroubles
from tidelog.settings import LogConfig
from tidelog.wire.hot import TopicRef

_MAPS_KEPT_SECONDS = 5.0
_DESCRIPTORS = "file descriptors"  # what is short when it is not the disk
_AT_ONCE = 20  # partitions whose files are made before others have their turn

log = logging.getLogger(__name__)


class Replicas:
    """See the module."""

    def __init__(
        self,
        manager: LogManager,
        config_of: Callable[[TopicInfo], LogConfig],
        broker_id: int,
        clock: Clock,
        metadata_of: Callable[[], ClusterMetadata] = ClusterMetadata,
    ) -> None:
        self.manager = manager
        self.partitions: dict[tuple[str, int], Partition] = {}
        self.by_id: dict[tuple[bytes, int], Partition] = {}
        self.log_dirs = LogDirs(manager.directories, clock)
        # Partitions that should be here: not made yet, or there is no room on the disk.
        self._offline: dict[tuple[str, int], tuple[TopicInfo, PartitionInfo]] = {}
        self._to_create: deque[tuple[str, int]] = deque()
        self._config_of = config_of
        self._metadata_of = metadata_of  # of the cluster, as clients see it now
        self.broker_id = broker_id
        self._clock = clock
        # Called when a leader wants another in-sync set; in a cluster only.
        self.propose_isr: Callable[[Leader, tuple[int, ...]], None] = _ignore
        # Called when a partition is served no longer; in a cluster it may be fetched.
        self.let_go: Callable[[Partition], None] = lambda _: None
        self._troubles = DiskTroubles(log, clock)
        self.storage_failing = self._troubles.failing
        self.flushes = Flushes(self.write_failed)
        self._sweeper = workers.pool(1, "sweep")

    # -- what the controller decides ----------------------------------------------

    def take(
        self, topic: TopicInfo, index: int, info: PartitionInfo, *, defer: bool = False
    ) -> Partition | None:
        """Lead or follow a partition, as the controller says; None if that is old news.

        Raises KAFKA_STORAGE_ERROR if the disk does not let us.  With ``defer`` the files of a new
        partition that we lead are made later: ten thousand take seconds.  A client that names it
        before then gets it at once (see ``find``).
        """
        key = (topic.name, index)
        partition = self.partitions.get(key)
        if partition is not None and partition.topic_id != topic.topic_id:
            self.drop(key)  # deleted and created again, and we missed it
            partition = None
        if partition is None:
            if defer and info.leader == self.broker_id and key not in self.manager.logs:
                self._create_later(key, topic, info)
                return None
            partition = self._open(topic, index, info)
        elif (info.leader_epoch, info.partition_epoch) <= partition.order:
            return None
        else:
            self._lead_or_follow(partition, info)
        return partition

    def _lead_or_follow(self, partition: Partition, info: PartitionInfo) -> None:
        if info.leader == self.broker_id:
            partition.lead(info, self._clock.now_ms())
        else:
            partition.follow(info)
        partition.order = (info.leader_epoch, info.partition_epoch)

    def _open(self, topic: TopicInfo, index: int, info: PartitionInfo) -> Partition:
        """Bring a partition up; without room on the disk it stays offline for now."""
        key = (topic.name, index)
        config = self._config_of(topic)
        found = self.manager.logs.get(key)
        if found is not None and self.manager.topic_ids.get(key, topic.topic_id) != topic.topic_id:
            self.manager.set_aside(*key)  # of an older topic of the same name
            found = None
        try:
            if found is None:
                found = self.manager.create(topic.name, index, topic.topic_id, config)
        except OSError as error:
            self._offline[key] = topic, info
            self.write_failed(error.filename or topic.name, error)
            raise ApiError(ErrorCode.KAFKA_STORAGE_ERROR) from error
        self._offline.pop(key, None)
        partition = Partition(self, topic.name, index, topic.topic_id, found)
        partition.configure(config)
        self.partitions[key] = partition
        self.by_id[topic.topic_id, index] = partition
        self._lead_or_follow(partition, info)
        return partition

    def _create_later(self, key: tuple[str, int], topic: TopicInfo, info: PartitionInfo) -> None:
        self._offline[key] = topic, info
        if not self._to_create:
            asyncio.get_running_loop().call_soon(self._create_some)
        self._to_create.append(key)

    def _create_some(self) -> None:
        """Make the files of a few new partitions, then let other work have its turn."""
        for _ in range(min(_AT_ONCE, len(self._to_create))):
            key = self._to_create.popleft()
            offline = self._offline.get(key)
            if offline is not None:  # else a client has asked for it, or it is deleted
                with contextlib.suppress(ApiError, OSError):  # a client's request tries again
                    self._open(offline[0], key[1], offline[1])
        if self._to_create:
            asyncio.get_running_loop().call_soon(self._create_some)

    def keep_only(self, wanted: set[tuple[str, int]]) -> None:
        """The controller has named all that we have: the rest is of no known topic."""
        for key in [key for key in self.manager.logs if key not in wanted]:
            self._let_go(key)
            try:
                self.manager.set_aside(*key)
            except OSError as error:  # it is not served; the next start tries again
                self.storage_failed("-".join(map(str, key)), error)

    def _let_go(self, key: tuple[str, int]) -> Partition | None:
        """Serve a partition no longer; its files stay."""
        partition = self.partitions.pop(key, None)
        if partition is None:
            return None
        self.by_id.pop((partition.topic_id, partition.index), None)
        self.let_go(partition)
        self.flushes.forget(partition)
        partition.close()
        return partition

    def configure(self, topic: TopicInfo) -> None:
        """A topic has new settings."""
        config = self._config_of(topic)
        for index in range(len(topic.partitions)):
            partition = self.partitions.get((topic.name, index))
            if partition is not None and partition.log.config != config:
                partition.configure(config)

    async def keep_in_sync_sets(self, max_lag_ms: int) -> None:
        """Look for followers that have fallen behind, again and again."""
        while True:
            await asyncio.sleep(max_lag_ms / 2000)
            for partition in list(self.partitions.values()):
                if partition.leader is not None:
                    partition.leader.check_lag(self._clock.now_ms(), max_lag_ms)

    def find(self, topic: TopicRef, index: int) -> Partition:
        """The partition that a client names, or the error that says why there is none."""
        if type(topic) is str:
            partition = self.partitions.get((topic, index))
        else:
            partition = self.by_id.get((topic, index))  # type: ignore[arg-type]
        return self._find_missing(topic, index) if partition is None else partition

    def _find_missing(self, topic: TopicRef, index: int) -> Partition:
        metadata = self._metadata_of()
        if isinstance(topic, bytes):
            if topic not in metadata.topic_names:
                raise ApiError(ErrorCode.UNKNOWN_TOPIC_ID)
            name = metadata.topic_names[topic]
        else:
            name = topic
        known = metadata.topics.get(name)
        if known is None or not 0 <= index < len(known.partitions):
            raise ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        offline = self._offline.get((name, index))
        if offline is None or offline[0].topic_id != known.topic_id:
            raise ApiError(ErrorCode.NOT_LEADER_OR_FOLLOWER)  # others have it
        if offline[1].leader != self.broker_id:
            raise ApiError(ErrorCode.KAFKA_STORAGE_ERROR)  # the controller asks us to try again
        return self._open(offline[0], index, offline[1])

    def drop(self, key: tuple[str, int]) -> None:
        """Delete a partition and its files."""
        self._offline.pop(key, None)
        partition = self._let_go(key)
        if partition is None:
            return
        try:
            doomed = self.manager.delete(*key)
        except OSError as error:
            # It stays on disk; if the topic is created again, it is quarantined.
            self.storage_failed(partition.log.directory, error)
            doomed = None
        if doomed:
            self._sweeper.submit(files.remove_tree, doomed)

    # -- retention and checkpoints ----------------------------------------------

    async def keep_retention(self, interval_ms: int, producer_expiration_ms: int) -> None:
        """Let old segments and silent producers go, again and again."""
        while True:
            await asyncio.sleep(interval_ms / 1000)
            for key in list(self.partitions):
                # Not the partition itself: this coroutine would keep the last one's files open
                # after its topic is deleted, until the next turn or for ever.
                self._keep_retention_of(key, producer_expiration_ms)
                await asyncio.sleep(0)  # others have their turn between two logs

    async def keep_maps(self, seconds: float = _MAPS_KEPT_SECONDS) -> None:
        """Unmap what readers had mapped, again and again."""
        while True:
            await asyncio.sleep(seconds)
            let_go_of_maps()

    def _keep_retention_of(self, key: tuple[str, int], producer_expiration_ms: int) -> None:
        partition = self.partitions.get(key)
        if partition is None:
            return
        try:
            self.apply_retention(partition)
        except OSError as error:
            self.storage_failed(partition.log.directory, error)
        except Exception:
            # One sick log must not stop retention for all the others.
            log.exception("%s: retention failed", partition.log.directory)
        partition.log.producers.expire(self._clock.now_ms(), producer_expiration_ms)

    def apply_retention(self, partition: Partition) -> None:
        if partition.deleted:
            return  # its directory may belong to a new topic of the same name by now
        files, reason = partition.log.apply_retention(self._clock.now_ms())
        if not files:
            return
        log.info(
            "%s-%d: dropped segments below offset %d (%s)",
            partition.topic,
            partition.index,
            partition.log.log_start_offset,
            reason,
        )
        self.remove_later(partition, files)

    def remove_later(self, partition: Partition, files: list[str]) -> None:
        """Remove files that are not read any more, after ``file.delete.delay.ms``."""
        delay = partition.log.config.file_delete_delay_ms / 1000
        asyncio.get_running_loop().call_later(delay, self._remove_files, files)

    def _remove_files(self, files: list[str]) -> None:
        for path in files:
            self._sweeper.submit(remove, path)

    async def keep_checkpoints(self, interval_ms: int) -> None:
        """Write the checkpoints down, again and again."""
        while True:
            await asyncio.sleep(interval_ms / 1000)
            await self.checkpoint()

    async def checkpoint(self) -> None:
        """Write the checkpoints down, beside other work."""
        try:
            await self.flushes.in_thread(self.manager.note_checkpoints())
        except OSError as error:
            self._checkpoints_failed(error)

    def write_checkpoints(self) -> None:
        """Write them now: an answer depends on it."""
        try:
            self.manager.write_checkpoints()
        except OSError as error:
            self._checkpoints_failed(error)

    def _checkpoints_failed(self, error: OSError) -> None:
        self.storage_failed(os.path.dirname(error.filename or "") or "checkpoints", error)

    # -- the disk ---------------------------------------------------------------

    def storage_failed(self, directory: str, error: OSError) -> None:
        """A write did not work: say so; reads go on, and the next write tries again."""
        reason = descriptors.reason(error)
        if descriptors.exhausted(error):
            effect = "what needs a file is refused: raise the limit, or have fewer partitions"
            self._troubles.failed(_DESCRIPTORS, directory, reason, effect)
            return
        place = self.log_dirs.place_of(directory, error) or directory
        self._troubles.failed(place, directory, reason)

    def write_failed(self, directory: str, error: OSError) -> None:
        """Records could not be written: in a cluster, others had better lead."""
        self.storage_failed(directory, error)
        if not descriptors.exhausted(error):  # the disk is well
            self.log_dirs.write_failed(directory, error)

    def storage_code(self, key: tuple[str, int]) -> ErrorCode:
        """What the controller is to know of the disk under a partition."""
        partition = self.partitions.get(key)
        if partition is None:
            return ErrorCode.NONE
        # Whatever its directory takes: what is to be on disk is not, and may be lost for good.
        if partition.log.flush_failed:
            return ErrorCode.KAFKA_STORAGE_ERROR
        if self.log_dirs.takes_writes(partition.log.directory):
            return ErrorCode.NONE
        return ErrorCode.KAFKA_STORAGE_ERROR

    def storage_works(self, directory: str) -> None:
        for place in (directory, self.log_dirs.directory_of(directory), _DESCRIPTORS):
            if place in self.storage_failing:
                self._troubles.works(place, directory)

    def close(self) -> dict[str, OSError]:
        """Stop upkeep and close the logs cleanly; returns what is not on disk, and why."""
        self.flushes.close()
        self._sweeper.shutdown(wait=False, cancel_futures=True)  # the next start goes on
        return self.manager.close()


def _ignore(leader: Leader, isr: tuple[int, ...]) -> None:
    """There is no controller to ask."""
