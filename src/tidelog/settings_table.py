"""The table of settings, in the six groups of Kafka's own ``server.properties``.

Kafka's names, types, defaults and meanings.  ``topic`` is the name under which a topic
may override the setting; ``dynamic`` ones may be changed while the broker runs.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tidelog.errors import SettingError

INT_MAX = 2**31 - 1
LONG_MAX = 2**63 - 1


@dataclass(frozen=True, slots=True)
class Kind:
    """A type of value: how to read it, and Kafka's number for it in DescribeConfigs."""

    name: str
    code: int
    parse: Callable[[str], Any]


def _parse_bool(text: str) -> bool:
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    raise ValueError("it must be true or false")


def _parse_int(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise ValueError("it must be a whole number") from None


def _parse_float(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise ValueError("it must be a number") from None


def _parse_list(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


def _parse_false(text: str) -> bool:
    if _parse_bool(text):
        raise ValueError("it must be false: there is no remote storage")
    return False


def _parse_gzip_level(text: str) -> int:
    level = _parse_int(text)
    if level != -1 and not 1 <= level <= 9:
        raise ValueError("it must be between 1 and 9, or -1 for gzip's own default")
    return level


def _parse_replicas(text: str) -> list[str]:
    parts = _parse_list(text)
    if parts != ["*"] and not all(re.fullmatch(r"\d+:\d+", part) for part in parts):
        raise ValueError("it must be * or partition:broker,partition:broker,...")
    return parts


BOOL = Kind("boolean", 1, _parse_bool)
STRING = Kind("string", 2, str)
INT = Kind("int", 3, _parse_int)
LONG = Kind("long", 5, _parse_int)
DOUBLE = Kind("double", 6, _parse_float)
LIST = Kind("list", 7, _parse_list)
FALSE = Kind("boolean", BOOL.code, _parse_false)
GZIP_LEVEL = Kind("int", INT.code, _parse_gzip_level)
REPLICAS = Kind("list", LIST.code, _parse_replicas)


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting.  ``topic`` is its name as a topic's own override, if it has one."""

    name: str
    kind: Kind
    default: Any
    doc: str
    least: float | None = None
    most: float | None = None
    choices: tuple[str, ...] = ()
    may_be_empty: bool = False  # a list with choices, of which none need be named
    topic: str = ""
    dynamic: bool = False  # may be changed while the broker runs

    def parse(self, value: Any) -> Any:
        """The value in its type, or a SettingError that names the setting."""
        if value is None:
            return None
        try:
            parsed = self.kind.parse(text_of(value).strip())
        except ValueError as error:
            raise SettingError(f"{self.name}={text_of(value)}: {error}") from None
        if self.kind in (INT, LONG, DOUBLE):
            least = self.least
            most = (
                self.most if self.most is not None else (INT_MAX if self.kind is INT else LONG_MAX)
            )
            if not (parsed if least is None else least) <= parsed <= most:  # NaN is neither
                low = f"{least}" if least is not None else "the type's minimum"
                raise SettingError(f"{self.name}={parsed}: it must be between {low} and {most}")
        if self.choices:
            given = parsed if isinstance(parsed, list) else [parsed]
            wrong = [item for item in given if item not in self.choices]
            if wrong or not (given or self.may_be_empty):
                shown = ", ".join(self.choices)
                if self.kind is LIST and len(self.choices) > 1:
                    shown += f", or several with commas: {','.join(self.choices)}"
                raise SettingError(f"{self.name}={text_of(value)}: it must be one of {shown}")
        return parsed


def text_of(value: Any) -> str:
    """A value as a properties file would hold it."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list | tuple):
        return ",".join(map(str, value))
    return str(value)


# fmt: off
_NO_EFFECT = "Accepted for Kafka's sake; it has no effect here: "

BASICS = [
    Setting("broker.id", INT, 0, least=0,
            doc="The number of this broker in its cluster."),
    Setting("broker.rack", STRING, None,
            doc="The rack (or zone) of this broker."),
    Setting("auto.create.topics.enable", BOOL, True,
            doc="Create a topic when a client first asks for it."),
    Setting("delete.topic.enable", BOOL, True,
            doc="Allow topics to be deleted."),
    Setting("default.replication.factor", INT, 1, least=1,
            doc="Replicas of an auto-created topic."),
    Setting("num.partitions", INT, 1, least=1,
            doc="Partitions of a topic that does not say how many."),
    Setting("min.insync.replicas", INT, 1, least=1, topic="min.insync.replicas", dynamic=True,
            doc="With acks=all, how many replicas must have a record; all of them, if a topic has "
                "fewer."),
    Setting("unclean.leader.election.enable", BOOL, False,
            topic="unclean.leader.election.enable", dynamic=True,
            doc="Let a replica that lags behind become leader."),
]

SOCKET = [
    Setting("listeners", LIST, ["PLAINTEXT://:9092"],
            doc="Where to listen: PLAINTEXT://host:port; an empty host is every interface."),
    Setting("advertised.listeners", LIST, None,
            doc="The address to tell clients; without it, the one they used to reach us."),
    Setting("socket.send.buffer.bytes", INT, -1, least=-1,
            doc="SO_SNDBUF; -1 leaves it to the system, which is faster (Kafka: 102400)."),
    Setting("socket.receive.buffer.bytes", INT, -1, least=-1,
            doc="SO_RCVBUF; -1 leaves it to the system, which is faster (Kafka: 102400)."),
    Setting("socket.request.max.bytes", INT, 104857600, least=1,
            doc="The largest request."),
    Setting("socket.listen.backlog.size", INT, 1024, least=1,
            doc="Connections that wait to be accepted (Kafka: 50; a burst of clients then waits)."),
    Setting("connections.max.idle.ms", LONG, 600000, least=-1,
            doc="Close connections idle for so long."),
    Setting("max.connections", INT, INT_MAX, least=0,
            doc="The most connections at a time."),
    Setting("fetch.max.bytes", INT, 57671680, least=1024,
            doc="The most bytes of one fetch response."),
    Setting("max.incremental.fetch.session.cache.slots", INT, 1000, least=0,
            doc="Incremental fetch sessions to remember."),
    Setting("fetch.transfer", STRING, "auto", choices=("auto", "sendfile", "mmap"),
            doc="How records leave: sendfile, mmap, or auto (mmap on this machine, else "
                "sendfile)."),
    Setting("num.network.threads", INT, 3, least=1,
            doc=_NO_EFFECT + "one loop serves all."),
    Setting("num.io.threads", INT, 8, least=1,
            doc=_NO_EFFECT + "one loop serves all."),
    Setting("queued.max.requests", INT, 500, least=1,
            doc=_NO_EFFECT + "requests are not queued."),
]

LOG = [
    Setting("log.dirs", LIST, ["tidelog-data"],
            doc="Where the logs are kept."),
    Setting("log.segment.bytes", INT, 1073741824, least=14, topic="segment.bytes", dynamic=True,
            doc="The size at which a segment is closed."),
    Setting("log.roll.ms", LONG, None, least=1, topic="segment.ms", dynamic=True,
            doc="The age at which a segment is closed."),
    Setting("log.roll.hours", INT, 168, least=1,
            doc="The same in hours, if log.roll.ms is not set."),
    Setting("log.roll.jitter.ms", LONG, None, least=0, topic="segment.jitter.ms", dynamic=True,
            doc="Spreads closing by up to this much."),
    Setting("log.roll.jitter.hours", INT, 0, least=0,
            doc="The same in hours."),
    Setting("log.index.interval.bytes", INT, 4096, least=0, topic="index.interval.bytes",
            dynamic=True,
            doc="Bytes between two index entries."),
    Setting("log.index.size.max.bytes", INT, 10485760, least=4, topic="segment.index.bytes",
            dynamic=True,
            doc="The largest index of a segment."),
    Setting("log.segment.delete.delay.ms", LONG, 60000, least=0, topic="file.delete.delay.ms",
            dynamic=True,
            doc="How long a deleted segment stays on disk as .deleted."),
    Setting("log.preallocate", BOOL, False, topic="preallocate",
            doc=_NO_EFFECT + "segments grow as they are written."),
    Setting("num.recovery.threads.per.data.dir", INT, 1, least=1,
            doc=_NO_EFFECT + "recovery uses one thread."),
    Setting("message.max.bytes", INT, 1048588, least=0, topic="max.message.bytes", dynamic=True,
            doc="The largest batch."),
    Setting("log.max.decompressed.bytes", LONG, None, least=1024, topic="max.decompressed.bytes",
            dynamic=True,
            doc="The most bytes that a batch may become where Produce decompresses it (compacted "
                "topics, compression.type, limits for timestamps), and all batches of a request "
                "together; other batches may count no more records than could fit.  Not set: 16 "
                "times max.message.bytes, at least 16777216.  Kafka has no such limit."),
    Setting("compression.type", STRING, "producer",
            choices=("producer", "uncompressed", "gzip", "snappy", "lz4", "zstd"),
            topic="compression.type", dynamic=True,
            doc="Recompress batches with this codec; producer keeps what the producer chose."),
    Setting("compression.gzip.level", GZIP_LEVEL, -1, topic="compression.gzip.level", dynamic=True,
            doc="The level when compression.type is gzip: 1 (fast) to 9 (small), -1 for 6."),
    Setting("compression.lz4.level", INT, 9, least=1, most=17, topic="compression.lz4.level",
            dynamic=True,
            doc="The level when compression.type is lz4.  As in Kafka, 9 is the fast compressor; "
                "every other number the slower one that packs tighter, 12 to 17 the tightest."),
    Setting("compression.zstd.level", INT, 3, least=-131072, most=22,
            topic="compression.zstd.level", dynamic=True,
            doc="The level when compression.type is zstd: the higher, the slower and smaller."),
    Setting("log.message.timestamp.type", STRING, "CreateTime",
            choices=("CreateTime", "LogAppendTime"), topic="message.timestamp.type",
            dynamic=True,
            doc="Whose clock stamps records: the producer's or, at append, the broker's."),
    Setting("log.message.timestamp.before.max.ms", LONG, LONG_MAX, least=0,
            topic="message.timestamp.before.max.ms", dynamic=True,
            doc="How far in the past a record's time may be."),
    Setting("log.message.timestamp.after.max.ms", LONG, 3600000, least=0,
            topic="message.timestamp.after.max.ms", dynamic=True,
            doc="How far in the future a record's time may be."),
    Setting("producer.id.expiration.ms", INT, 86400000, least=1,
            doc="Forget an idempotent producer after so long without a write."),
]

FLUSH = [
    Setting("log.flush.interval.messages", LONG, LONG_MAX, least=1, topic="flush.messages",
            dynamic=True,
            doc="Flush a log to disk after so many records."),
    Setting("log.flush.interval.ms", LONG, None, least=0, topic="flush.ms", dynamic=True,
            doc="Flush a log to disk when its oldest unflushed record is so old."),
    Setting("log.flush.scheduler.interval.ms", LONG, LONG_MAX, least=1,
            doc="How often to flush a log for which no flush interval in ms is set."),
    Setting("log.flush.offset.checkpoint.interval.ms", INT, 60000, least=1,
            doc="How often the recovery points and high watermarks are written down."),
    Setting("log.flush.start.offset.checkpoint.interval.ms", INT, 60000, least=1,
            doc="How often the log start offsets are written down."),
    Setting("log.visibility", STRING, "written", choices=("written", "flushed"),
            topic="visibility", dynamic=True,
            doc="When consumers see a record: written, or only when flushed to disk (then "
                "acks=all waits for the disk, and flush.ms is 1000 unless set)."),
]

RETENTION = [
    Setting("log.cleanup.policy", LIST, ["delete"], choices=("delete", "compact"),
            may_be_empty=True, topic="cleanup.policy", dynamic=True,
            doc="delete: old segments go.  compact: each key keeps its newest record.  Or both.  "
                "Empty: everything is kept for ever, whatever the retention settings say."),
    Setting("log.retention.ms", LONG, None, least=-1, topic="retention.ms", dynamic=True,
            doc="Delete segments older than this; -1 never."),
    Setting("log.retention.minutes", INT, None, least=-1,
            doc="The same in minutes."),
    Setting("log.retention.hours", INT, 168, least=-1,
            doc="The same in hours."),
    Setting("log.retention.bytes", LONG, -1, least=-1, topic="retention.bytes", dynamic=True,
            doc="Delete from the start of a larger log; -1 never."),
    Setting("log.retention.check.interval.ms", LONG, 300000, least=1,
            doc="How often to look for segments to delete."),
    Setting("log.local.retention.ms", LONG, -2, least=-2, topic="local.retention.ms", dynamic=True,
            doc=_NO_EFFECT + "there is no remote storage."),
    Setting("log.local.retention.bytes", LONG, -2, least=-2, topic="local.retention.bytes",
            dynamic=True,
            doc=_NO_EFFECT + "there is no remote storage."),
    Setting("remote.storage.enable", FALSE, False, topic="remote.storage.enable",
            doc="There is no remote storage: only false is accepted, as in Kafka without it."),
    Setting("remote.log.copy.disable", BOOL, False, topic="remote.log.copy.disable",
            doc=_NO_EFFECT + "there is no remote storage."),
    Setting("remote.log.delete.on.disable", BOOL, False, topic="remote.log.delete.on.disable",
            doc=_NO_EFFECT + "there is no remote storage."),
    Setting("log.cleaner.delete.retention.ms", LONG, 86400000, least=0,
            topic="delete.retention.ms", dynamic=True,
            doc="How long compaction keeps tombstones, from the first round that meets them."),
    Setting("log.cleaner.min.cleanable.ratio", DOUBLE, 0.5, least=0, most=1,
            topic="min.cleanable.dirty.ratio", dynamic=True,
            doc="How dirty a log must be for compaction: the share of bytes not yet compacted."),
    Setting("log.cleaner.min.compaction.lag.ms", LONG, 0, least=0, topic="min.compaction.lag.ms",
            dynamic=True,
            doc="How long compaction leaves a record alone."),
    Setting("log.cleaner.max.compaction.lag.ms", LONG, LONG_MAX, least=1,
            topic="max.compaction.lag.ms", dynamic=True,
            doc="How long a record may stay uncompacted, however clean the log is."),
    Setting("log.cleaner.enable", BOOL, True,
            doc="Compact logs at all."),
    Setting("log.cleaner.backoff.ms", LONG, 15000, least=0, dynamic=True,
            doc="How long to wait when there is nothing to compact."),
    Setting("log.cleaner.dedupe.buffer.size", LONG, 134217728, least=1048576, dynamic=True,
            doc="Memory for the keys of one round, 208 bytes each; more keys take more rounds."),
    Setting("log.cleaner.io.buffer.load.factor", DOUBLE, 0.9, least=0.01, most=1, dynamic=True,
            doc="How full that memory may be."),
    Setting("log.cleaner.io.buffer.size", INT, 524288, least=61, dynamic=True,
            doc="How much of a segment is read at a time."),
    Setting("log.cleaner.io.max.bytes.per.second", DOUBLE, sys.float_info.max, least=1,
            most=sys.float_info.max, dynamic=True,
            doc="How fast compaction may read and write, together."),
    Setting("log.cleaner.threads", INT, 1, least=0, dynamic=True,
            doc="How many logs are compacted at a time, each by a process of its own; they share "
                "the memory and the bytes per second."),
]

CONSUMER_GROUPS = [
    Setting("group.initial.rebalance.delay.ms", INT, 3000, least=0,
            doc="How long the first member of a group waits for others before the first "
                "rebalance.  `tidelog up` sets 0, as Kafka's sample server.properties does."),
    Setting("group.min.session.timeout.ms", INT, 6000, least=0,
            doc="The shortest session timeout that a member may ask for."),
    Setting("group.max.session.timeout.ms", INT, 1800000, least=0,
            doc="The longest session timeout that a member may ask for."),
    Setting("group.max.size", INT, INT_MAX, least=1,
            doc="The most members of a group."),
    Setting("group.consumer.assignors", LIST, ["uniform", "range"],
            choices=("uniform", "range"),
            doc="The assignors of consumer groups (KIP-848); the first is the default."),
    Setting("group.consumer.heartbeat.interval.ms", INT, 5000, least=1,
            doc="How often members of consumer groups send a heartbeat; they are asked to come "
                "sooner while partitions move.  A group may have its own: "
                "consumer.heartbeat.interval.ms."),
    Setting("group.consumer.max.heartbeat.interval.ms", INT, 15000, least=1,
            doc="The longest consumer.heartbeat.interval.ms that a group may have of its own."),
    Setting("group.consumer.max.session.timeout.ms", INT, 60000, least=1,
            doc="The longest consumer.session.timeout.ms that a group may have of its own."),
    Setting("group.consumer.max.size", INT, INT_MAX, least=1,
            doc="The most members of a consumer group."),
    Setting("group.consumer.migration.policy", STRING, "bidirectional",
            choices=("bidirectional", "upgrade", "downgrade", "disabled"),
            doc="Whether a group may change between the classic and the consumer protocol while "
                "it has members."),
    Setting("group.consumer.min.heartbeat.interval.ms", INT, 5000, least=1,
            doc="The shortest consumer.heartbeat.interval.ms that a group may have of its own."),
    Setting("group.consumer.min.session.timeout.ms", INT, 45000, least=1,
            doc="The shortest consumer.session.timeout.ms that a group may have of its own."),
    Setting("group.consumer.regex.refresh.interval.ms", INT, 600000, least=10000,
            doc=_NO_EFFECT + "regular expressions are matched again when a topic comes or goes."),
    Setting("group.consumer.session.timeout.ms", INT, 45000, least=1,
            doc="After so long without a heartbeat a member of a consumer group is dead.  A group "
                "may have its own: consumer.session.timeout.ms."),
    Setting("group.coordinator.rebalance.protocols", LIST, ["classic", "consumer"],
            choices=("classic", "consumer", "share", "streams"),
            doc="The protocols of groups.  Without consumer, group.protocol=consumer is refused; "
                "classic is always there, share and streams never are."),
    Setting("offset.metadata.max.bytes", INT, 4096, least=0,
            doc="The longest text that may be committed with an offset."),
    Setting("offsets.commit.timeout.ms", INT, 5000, least=1,
            doc="How long a commit waits for the replicas."),
    Setting("offsets.retention.minutes", INT, None, least=1,
            doc="Forget committed offsets after so long without a member.  Not set: they live as "
                "long as the data that they point into (Kafka: 10080)."),
    Setting("offsets.retention.check.interval.ms", LONG, 600000, least=1,
            doc="How often to look for committed offsets to forget."),
    Setting("offsets.topic.num.partitions", INT, 50, least=1,
            doc="Partitions of __consumer_offsets when it is created."),
    Setting("offsets.topic.replication.factor", INT, 3, least=1,
            doc="Replicas of __consumer_offsets.  With fewer brokers it has fewer; those that "
                "join later get the rest."),
    Setting("offsets.topic.segment.bytes", INT, 104857600, least=1,
            doc="The size at which a segment of __consumer_offsets is closed."),
    Setting("offsets.load.buffer.size", INT, 5242880, least=1,
            doc=_NO_EFFECT + "offsets are loaded batch by batch."),
    Setting("offsets.topic.compression.codec", INT, 0, least=0,
            doc=_NO_EFFECT + "records of groups are not compressed."),
]

COORDINATION = [
    Setting("zookeeper.connect", STRING, "",
            doc="host:port,host:port/path of the ZooKeeper of a cluster.  Empty: a single broker "
                "with the embedded keeper."),
    Setting("zookeeper.session.timeout.ms", INT, 18000, least=1,
            doc="A broker that ZooKeeper has not heard from for so long is dead."),
    Setting("zookeeper.connection.timeout.ms", INT, None, least=1,
            doc="How long a broker that starts waits for ZooKeeper; by default as long as the "
                "session timeout."),
    Setting("controller.socket.timeout.ms", INT, 30000, least=1,
            doc="How long one broker waits for the answer of another."),
    Setting("controlled.shutdown.enable", BOOL, True,
            doc="A broker that stops has its leaders moved to others first."),
    Setting("controlled.shutdown.max.retries", INT, 3, least=0,
            doc="How often it tries."),
    Setting("controlled.shutdown.retry.backoff.ms", LONG, 5000, least=0,
            doc="How long it waits in between, at most half a second."),
    Setting("auto.leader.rebalance.enable", BOOL, True,
            doc="Give brokers the leads back that are theirs by preference."),
    Setting("leader.imbalance.check.interval.seconds", LONG, 300, least=1,
            doc="How often to look for leads to give back."),
    Setting("leader.imbalance.per.broker.percentage", INT, 10, least=0,
            doc="Give leads back to a broker when it lacks more than this share of its own."),
]

REPLICATION = [
    Setting("replica.lag.time.max.ms", LONG, 30000, least=1,
            doc="A follower that has not caught up for so long is no longer in sync."),
    Setting("replica.fetch.wait.max.ms", INT, 500, least=1,
            doc="How long a follower's fetch waits for new records."),
    Setting("replica.fetch.min.bytes", INT, 1, least=0,
            doc="How many bytes a follower's fetch waits for."),
    Setting("replica.fetch.max.bytes", INT, 1048576, least=0,
            doc="The most bytes of one partition that a follower fetches at a time."),
    Setting("replica.fetch.response.max.bytes", INT, 10485760, least=0,
            doc="The most bytes that a follower fetches at a time."),
    Setting("replica.fetch.backoff.ms", INT, 1000, least=0,
            doc=_NO_EFFECT + "a follower tries again after a tenth of a second."),
    Setting("replica.high.watermark.checkpoint.interval.ms", LONG, 5000, least=1,
            doc="How often the high watermarks are written down, in a cluster."),
    Setting("replica.socket.timeout.ms", INT, 30000, least=1,
            doc=_NO_EFFECT + "controller.socket.timeout.ms holds for followers too."),
    Setting("replica.selector.class", STRING, "",
            choices=("", "org.apache.kafka.common.replica.LeaderSelector",
                     "org.apache.kafka.common.replica.RackAwareReplicaSelector"),
            doc="RackAwareReplicaSelector: consumers with a client.rack read from a replica in "
                "their rack.  Empty: from the leader."),
    Setting("num.replica.fetchers", INT, 1, least=1,
            doc=_NO_EFFECT + "there is one fetcher for each leader."),
    Setting("leader.replication.throttled.rate", LONG, LONG_MAX, least=0, dynamic=True,
            doc="How many bytes a second a broker sends to throttled replicas, as their leader."),
    Setting("follower.replication.throttled.rate", LONG, LONG_MAX, least=0, dynamic=True,
            doc="How many bytes a second a broker fetches of throttled replicas."),
    Setting("leader.replication.throttled.replicas", REPLICAS, [],
            topic="leader.replication.throttled.replicas",
            doc="The replicas that are throttled while they lead, as partition:broker, or * for "
                "all of a topic.  `tidelog topics reassign --throttle` sets them."),
    Setting("follower.replication.throttled.replicas", REPLICAS, [],
            topic="follower.replication.throttled.replicas",
            doc="The replicas that are throttled while they follow and are not in sync."),
    Setting("replica.alter.log.dirs.io.max.bytes.per.second", LONG, LONG_MAX, least=0,
            dynamic=True,
            doc="How many bytes a second are copied of each replica that moves between log "
                "directories."),
]
# fmt: on

GROUPS = {
    "Server basics": BASICS,
    "Socket server": SOCKET,
    "Log basics": LOG,
    "Flush policy": FLUSH,
    "Retention policy": RETENTION,
    "Consumer groups": CONSUMER_GROUPS,
    "Coordination": COORDINATION,
    "Replication": REPLICATION,
}
SETTINGS: dict[str, Setting] = {s.name: s for group in GROUPS.values() for s in group}
TOPIC_SETTINGS: dict[str, Setting] = {s.topic: s for s in SETTINGS.values() if s.topic}
# What a consumer group may have of its own (KIP-848): group.consumer.x is its consumer.x.
GROUP_SETTINGS: dict[str, Setting] = {
    name.removeprefix("group."): SETTINGS[name]
    for name in ("group.consumer.session.timeout.ms", "group.consumer.heartbeat.interval.ms")
}
