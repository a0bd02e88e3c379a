"""Asks the cluster which partitions a query reads, where they begin and end, and their sizes.

Everything here runs on the driver.  An exception in a stream's planning ends the query, so a
broker that restarts must not be one: a question is repeated ``fetchOffset.numRetries`` times,
and beyond that as long as ``default.api.timeout.ms`` lasts if it may only be a matter of time.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from statistics import median
from typing import TypeVar

from tidelog.client.cluster import LEADER_MOVED, TOPIC_GONE, TopicView, check_topic, no_topic
from tidelog.client.connection import CannotConnect
from tidelog.client.fetcher import Fetcher
from tidelog.client.groups import committed_offsets, set_offsets
from tidelog.client.offsets import Extent, Position, resolve
from tidelog.client.partitions import LATEST, extents, list_offsets, log_sizes
from tidelog.clock import Clock, SystemClock
from tidelog.errors import RETRIABLE, ApiError
from tidelog.pipeline.options import OptionError, SourceOptions
from tidelog.pipeline.planner import DEFAULT_BYTES_PER_OFFSET, Logs, Sizes
from tidelog.pipeline.where import NoRecord, Where
from tidelog.text import plural
from tidelog.topic_partition import TopicPartition
from tidelog.wire.batch import MAGIC, read_header

R = TypeVar("R")

_log = logging.getLogger(__name__)
_SIZES_TTL = 60.0  # an average changes slowly
_SAMPLE_BYTES = 64 * 1024
_SAMPLE_PARTITIONS = 32
_SAMPLE_SECONDS = 5.0


class Positions:
    """See the module.  Holds connections: close it."""

    def __init__(self, options: SourceOptions, clock: Clock | None = None) -> None:
        self._options = options
        self._clock = clock or SystemClock()
        self._cluster = options.client.cluster()
        self._answered = False
        self._topics: tuple[float, dict[str, TopicView]] | None = None
        self._sizes: dict[TopicPartition, float] = {}
        self._sizes_at = 0.0

    def close(self) -> None:
        self._cluster.close()

    # -- asking again -----------------------------------------------------------

    def retried(self, ask: Callable[[], R], *, topics_may_go: bool = False) -> R:
        """Ask until there is an answer, or no hope for one.

        A cluster that has never answered is more likely a wrong address than one that restarts.
        """
        deadline = self._clock.monotonic() + self._options.client.api_timeout
        attempt = 0
        while True:
            try:
                result = ask()
            except ApiError as error:
                attempt += 1
                gone = error.code in TOPIC_GONE
                in_time = self._answered and not gone and self._clock.monotonic() < deadline
                again = attempt <= self._options.num_retries and (topics_may_go or not gone)
                if error.code not in RETRIABLE or not (in_time or again):
                    if isinstance(error, CannotConnect):
                        raise error.advised("kafka.bootstrap.servers") from error
                    raise
                if attempt & (attempt - 1) == 0:  # 1, 2, 4, 8: enough to know, not to fill a log
                    _log.warning("%s; asking again", error)
                self._topics = None
                self.pause()
            else:
                self._answered = True
                return result

    def pause(self) -> None:
        time.sleep(self._options.retry_interval)

    # -- the logs ---------------------------------------------------------------

    def logs(self, *, missing_allowed: bool = False) -> Logs:
        """The partitions of the query, as they are now.

        A topic that is not there is an error, unless the stream is to decide what that means.
        """
        # With ``missing_allowed`` a topic may only be gone between two questions.
        return self.retried(lambda: self._logs(missing_allowed), topics_may_go=missing_allowed)

    def _logs(self, missing_allowed: bool) -> Logs:
        topics = self._wanted_topics(missing_allowed)
        leaders = {
            TopicPartition(topic.name, part.index): part.leader
            for topic in topics.values()
            for part in topic.partitions
        }
        assigned = self._options.topics.assign
        if assigned:
            for tp in sorted(assigned - leaders.keys()):
                if not missing_allowed:
                    topics[tp.topic].leader_of(
                        tp.partition
                    )  # raises, with the partitions that are there
            leaders = {tp: row for tp, row in leaders.items() if tp in assigned}
        read_committed = self._options.client.read_committed
        found = extents(self._cluster, leaders, read_committed=read_committed)
        return Logs({name: topic.topic_id for name, topic in topics.items()}, found, leaders)

    def _wanted_topics(self, missing_allowed: bool) -> dict[str, TopicView]:
        now, ttl = self._clock.monotonic(), self._options.metadata_ttl
        if ttl is not None and self._topics is not None and now - self._topics[0] < ttl:
            return self._topics[1]
        wanted = self._options.topics
        if wanted.pattern:
            views = {
                name: view
                for name, view in self._cluster.metadata().topics.items()
                if not view.internal and wanted.wants(name)
            }
        else:
            views = self._cluster.metadata(wanted.names).topics
        found = {}
        for name, view in views.items():
            if view.error in TOPIC_GONE and (missing_allowed or wanted.pattern):
                continue
            if view.error in LEADER_MOVED and not view.partitions:
                raise ApiError(view.error, f"topic {name!r} is being made")  # repeated
            if view.error in TOPIC_GONE:
                raise no_topic(name, self._cluster.topic_names())
            check_topic(view)
            found[name] = view
        self._topics = now, found
        return found

    def reaching(self, logs: Logs, known: Mapping[TopicPartition, int]) -> Logs:
        """The logs, up to offsets beyond their ends that were read before.

        With read_committed a log ends at the first open transaction, and who was not
        read_committed before may have read on: that is not a log that was cut.
        """
        if not known or not self._options.client.read_committed:
            return logs
        rows = dict.fromkeys(known, LATEST)
        ends = self.retried(lambda: list_offsets(self._cluster, rows))
        there = {tp: at for tp, at in known.items() if at <= (ends[tp] or 0)}
        longer = {tp: Extent(logs.extents[tp].start, at) for tp, at in there.items()}
        return Logs(logs.ids, {**logs.extents, **longer}, logs.leaders)

    # -- named offsets ----------------------------------------------------------

    def resolve(
        self, where: Where | None, default: Position, logs: Logs
    ) -> dict[TopicPartition, int]:
        """Where each partition begins or ends, as the options say."""
        if where is None:
            where = Where("", default)
        if where.group:
            return self._committed(logs)
        each = where.each
        if each is None:
            assert where.position is not None
            each = dict.fromkeys(logs.extents, where.position)
        elif each.keys() != logs.extents.keys():
            raise _other_partitions(where, logs)
        now_ms = self._clock.now_ms()
        times = {
            tp: time_ms
            for tp, position in each.items()
            if (time_ms := position.time_ms(now_ms)) is not None
        }
        by_time: Mapping[TopicPartition, int | None] = {}
        if times:
            committed = self._options.client.read_committed
            by_time = self.retried(
                lambda: list_offsets(self._cluster, times, read_committed=committed)
            )
        if where.no_record is NoRecord.ERROR:
            for tp, time_ms in times.items():
                if by_time.get(tp) is None:
                    raise OptionError(
                        f"{where.option}: {tp} has no record at or after {time_ms}; name an "
                        "earlier time, or set startingOffsetsByTimestampStrategy to latest"
                    )
        return {
            tp: resolve(position, logs.extents[tp], by_time.get(tp))
            for tp, position in each.items()
        }

    def _committed(self, logs: Logs) -> dict[TopicPartition, int]:
        """What the group has committed; the start of the log where it has committed nothing."""
        group_id = self._options.client.group_id or ""
        found = self.retried(lambda: committed_offsets(self._cluster, group_id))
        result = {}
        for tp, log in logs.extents.items():
            committed = found.get(tp)
            result[tp] = log.start if committed is None else committed.offset
        without = sorted(result.keys() - found.keys())
        if without:
            _log.warning(
                "group %r has committed nothing for %s (%s...): reading from the start there",
                group_id, plural(len(without), "partition"), without[0],
            )  # fmt: skip
        return result

    def commit(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Show the group's progress.  The checkpoint is the truth: a failure is only logged."""
        group_id = self._options.client.group_id
        if group_id is None or not offsets:
            return
        try:
            problems = set_offsets(self._cluster, group_id, offsets)
            problem = next((error for error in problems.values() if error is not None), None)
        except ApiError as error:
            problem = error
        if problem is not None:
            _log.warning("could not commit the offsets of group %r: %s", group_id, problem)

    # -- sizes ------------------------------------------------------------------

    def sizes(self, logs: Logs, begins: Mapping[TopicPartition, int]) -> Sizes:
        """Bytes per offset on disk (as compressed as it is there), for these partitions."""
        now = self._clock.monotonic()
        if now - self._sizes_at > _SIZES_TTL:
            self._sizes.clear()
            self._sizes_at = now
        unknown = [
            tp for tp in begins if tp not in self._sizes and tp in logs.extents and _count(logs, tp)
        ]
        if unknown:
            found = self._sizes_on_disk(logs, unknown)
            left = {
                tp: begins[tp]
                for tp in unknown
                if tp not in found and begins[tp] < logs.extents[tp].end
            }
            if left:
                found |= self._sampled(left, logs)
            self._sizes.update(found)
        return self._sizes

    def _sizes_on_disk(self, logs: Logs, tps: list[TopicPartition]) -> dict[TopicPartition, float]:
        leaders = {logs.leaders[tp] for tp in tps if logs.leaders.get(tp, -1) >= 0}
        try:
            rows = log_sizes(self._cluster, tps, leaders)
        except ApiError as error:  # often not allowed: it needs a right on the whole cluster
            _log.info("no sizes from DescribeLogDirs: %s", error)
            return {}
        return {
            row.partition: row.size / _count(logs, row.partition)
            for row in rows
            if row.size > 0 and logs.leaders.get(row.partition) == row.broker_id
        }

    def _sampled(
        self, begins: Mapping[TopicPartition, int], logs: Logs
    ) -> dict[TopicPartition, float]:
        """The size of some records where reading begins, in the partitions that have most to
        read; what is typical of these is taken for the others."""
        largest = sorted(begins, key=lambda tp: begins[tp] - logs.extents[tp].end)
        found: dict[TopicPartition, float] = {}
        fetcher = Fetcher(
            self._cluster, max_wait_ms=0, partition_max_bytes=_SAMPLE_BYTES, clock=self._clock
        )
        deadline = self._clock.monotonic() + _SAMPLE_SECONDS
        try:
            for tp in largest[:_SAMPLE_PARTITIONS]:
                fetcher.assign(tp, begins[tp])
            while fetcher.positions and self._clock.monotonic() < deadline:
                for part in fetcher.poll(1.0):
                    if part.batches and part.batches[0][16] == MAGIC:
                        first = read_header(part.batches[0]).base_offset
                        last = read_header(part.batches[-1]).last_offset
                        size = sum(map(len, part.batches))
                        found[part.partition] = size / (last - first + 1)
                    fetcher.drop(part.partition)
        except ApiError as error:
            _log.info("no sizes from a sample: %s", error)
        finally:
            fetcher.close()
        typical = median(found.values()) if found else DEFAULT_BYTES_PER_OFFSET
        return dict.fromkeys(begins, typical) | found


def _count(logs: Logs, tp: TopicPartition) -> int:
    log = logs.extents[tp]
    return log.end - log.start


def _other_partitions(where: Where, logs: Logs) -> OptionError:
    assert where.each is not None
    missing = sorted(logs.extents.keys() - where.each.keys())
    surplus = sorted(where.each.keys() - logs.extents.keys())
    parts = []
    if missing:
        parts.append(f"it leaves out {', '.join(map(str, missing))}")
    if surplus:
        parts.append(f"it names {', '.join(map(str, surplus))}, which the query does not read")
    hint = "; write -2 (earliest) where you do not care, or in a stream -1 (latest)"
    return OptionError(
        f"{where.option} must name every partition of the query: {' and '.join(parts)}"
        + (hint if where.no_record is NoRecord.END else "")
    )
