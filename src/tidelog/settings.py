"""Every setting: Kafka's name, type, default and meaning, and what checks its value.

``Settings`` is what one broker was told: a properties file, ``--set`` or a dict.
``LogConfig`` is what one log goes by: the broker's settings with a topic's own
overrides on top.  A setting that nobody knows, a wrong type or an impossible value
is refused with the name, the reason and the nearest valid name.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from tidelog import settings_legacy
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


BOOL = Kind("boolean", 1, _parse_bool)
STRING = Kind("string", 2, str)
INT = Kind("int", 3, _parse_int)
LONG = Kind("long", 5, _parse_int)
DOUBLE = Kind("double", 6, _parse_float)
LIST = Kind("list", 7, _parse_list)


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
            if (least is not None and parsed < least) or parsed > most:
                low = f"{least}" if least is not None else "the type's minimum"
                raise SettingError(f"{self.name}={parsed}: it must be between {low} and {most}")
        if self.choices:
            given = parsed if isinstance(parsed, list) else [parsed]
            wrong = [item for item in given if item not in self.choices]
            if wrong or not given:
                shown = ", ".join(self.choices)
                raise SettingError(f"{self.name}={text_of(value)}: it must be one of {shown}")
        return parsed


def text_of(value: Any) -> str:
    """A value as a properties file would hold it."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list | tuple):
        return ",".join(map(str, value))
    return str(value)


_NO_EFFECT = "Accepted for Kafka's sake; it has no effect here: "

BASICS = [
    Setting("broker.id", INT, 0, "The number of this broker in its cluster.", least=0),
    Setting("broker.rack", STRING, None, "The rack (or zone) of this broker."),
    Setting(
        "auto.create.topics.enable", BOOL, True, "Create a topic when a client first asks for it."
    ),
    Setting("delete.topic.enable", BOOL, True, "Allow topics to be deleted."),
    Setting("default.replication.factor", INT, 1, "Replicas of an auto-created topic.", least=1),
    Setting("num.partitions", INT, 1, "Partitions of a topic that does not say how many.", least=1),
    Setting(
        "min.insync.replicas",
        INT,
        1,
        "With acks=all, how many replicas must have a record.",
        least=1,
        topic="min.insync.replicas",
        dynamic=True,
    ),
    Setting(
        "unclean.leader.election.enable",
        BOOL,
        False,
        "Let a replica that lags behind become leader.",
        topic="unclean.leader.election.enable",
        dynamic=True,
    ),
]

SOCKET = [
    Setting(
        "listeners",
        LIST,
        ["PLAINTEXT://:9092"],
        "Where to listen: PLAINTEXT://host:port; an empty host is every interface.",
    ),
    Setting(
        "advertised.listeners",
        LIST,
        None,
        "The address to tell clients; without it, the one they used to reach us.",
    ),
    Setting(
        "socket.send.buffer.bytes", INT, 102400, "SO_SNDBUF; -1 leaves it to the system.", least=-1
    ),
    Setting(
        "socket.receive.buffer.bytes",
        INT,
        102400,
        "SO_RCVBUF; -1 leaves it to the system.",
        least=-1,
    ),
    Setting("socket.request.max.bytes", INT, 104857600, "The largest request.", least=1),
    Setting(
        "socket.listen.backlog.size", INT, 50, "Connections that wait to be accepted.", least=1
    ),
    Setting(
        "connections.max.idle.ms", LONG, 600000, "Close connections idle for so long.", least=-1
    ),
    Setting("max.connections", INT, INT_MAX, "The most connections at a time.", least=0),
    Setting("fetch.max.bytes", INT, 57671680, "The most bytes of one fetch response.", least=1024),
    Setting(
        "max.incremental.fetch.session.cache.slots",
        INT,
        1000,
        "Incremental fetch sessions to remember.",
        least=0,
    ),
    Setting(
        "fetch.transfer",
        STRING,
        "auto",
        "How records leave: sendfile, mmap, or auto (mmap on this machine, else sendfile).",
        choices=("auto", "sendfile", "mmap"),
    ),
    Setting("num.network.threads", INT, 3, _NO_EFFECT + "one loop serves all.", least=1),
    Setting("num.io.threads", INT, 8, _NO_EFFECT + "one loop serves all.", least=1),
    Setting("queued.max.requests", INT, 500, _NO_EFFECT + "requests are not queued.", least=1),
]

LOG = [
    Setting("log.dirs", LIST, ["tidelog-data"], "Where the logs are kept."),
    Setting(
        "log.segment.bytes",
        INT,
        1073741824,
        "The size at which a segment is closed.",
        least=14,
        topic="segment.bytes",
        dynamic=True,
    ),
    Setting(
        "log.roll.ms",
        LONG,
        None,
        "The age at which a segment is closed.",
        least=1,
        topic="segment.ms",
        dynamic=True,
    ),
    Setting("log.roll.hours", INT, 168, "The same in hours, if log.roll.ms is not set.", least=1),
    Setting(
        "log.roll.jitter.ms",
        LONG,
        None,
        "Spreads closing by up to this much.",
        least=0,
        topic="segment.jitter.ms",
        dynamic=True,
    ),
    Setting("log.roll.jitter.hours", INT, 0, "The same in hours.", least=0),
    Setting(
        "log.index.interval.bytes",
        INT,
        4096,
        "Bytes between two index entries.",
        least=0,
        topic="index.interval.bytes",
        dynamic=True,
    ),
    Setting(
        "log.index.size.max.bytes",
        INT,
        10485760,
        "The largest index of a segment.",
        least=4,
        topic="segment.index.bytes",
        dynamic=True,
    ),
    Setting(
        "log.segment.delete.delay.ms",
        LONG,
        60000,
        "How long a deleted segment stays on disk as .deleted.",
        least=0,
        topic="file.delete.delay.ms",
        dynamic=True,
    ),
    Setting(
        "log.preallocate",
        BOOL,
        False,
        _NO_EFFECT + "segments grow as they are written.",
        topic="preallocate",
    ),
    Setting(
        "num.recovery.threads.per.data.dir",
        INT,
        1,
        _NO_EFFECT + "recovery uses one thread.",
        least=1,
    ),
    Setting(
        "message.max.bytes",
        INT,
        1048588,
        "The largest batch.",
        least=0,
        topic="max.message.bytes",
        dynamic=True,
    ),
    Setting(
        "compression.type",
        STRING,
        "producer",
        "Recompress batches with this codec; producer keeps what the producer chose.",
        choices=("producer", "uncompressed", "gzip", "snappy", "lz4", "zstd"),
        topic="compression.type",
        dynamic=True,
    ),
    Setting(
        "log.message.timestamp.type",
        STRING,
        "CreateTime",
        "Whose clock stamps records: the producer's or, at append, the broker's.",
        choices=("CreateTime", "LogAppendTime"),
        topic="message.timestamp.type",
        dynamic=True,
    ),
    Setting(
        "log.message.timestamp.before.max.ms",
        LONG,
        LONG_MAX,
        "How far in the past a record's time may be.",
        least=0,
        topic="message.timestamp.before.max.ms",
        dynamic=True,
    ),
    Setting(
        "log.message.timestamp.after.max.ms",
        LONG,
        3600000,
        "How far in the future a record's time may be.",
        least=0,
        topic="message.timestamp.after.max.ms",
        dynamic=True,
    ),
    Setting(
        "producer.id.expiration.ms",
        INT,
        86400000,
        "Forget an idempotent producer after so long without a write.",
        least=1,
    ),
]

FLUSH = [
    Setting(
        "log.flush.interval.messages",
        LONG,
        LONG_MAX,
        "Flush a log to disk after so many records.",
        least=1,
        topic="flush.messages",
        dynamic=True,
    ),
    Setting(
        "log.flush.interval.ms",
        LONG,
        None,
        "Flush a log to disk when its oldest unflushed record is so old.",
        least=0,
        topic="flush.ms",
        dynamic=True,
    ),
    Setting(
        "log.flush.scheduler.interval.ms",
        LONG,
        LONG_MAX,
        "How often to look for logs to flush; by default as often as they need it.",
        least=1,
    ),
    Setting(
        "log.flush.offset.checkpoint.interval.ms",
        INT,
        60000,
        "How often the recovery points and high watermarks are written down.",
        least=1,
    ),
    Setting(
        "log.flush.start.offset.checkpoint.interval.ms",
        INT,
        60000,
        "How often the log start offsets are written down.",
        least=1,
    ),
    Setting(
        "log.visibility",
        STRING,
        "written",
        "When consumers see a record: written, or only when flushed to disk "
        "(then acks=all waits for the disk, and flush.ms is 1000 unless set).",
        choices=("written", "flushed"),
        topic="visibility",
        dynamic=True,
    ),
]

RETENTION = [
    Setting(
        "log.cleanup.policy",
        LIST,
        ["delete"],
        "delete: old segments go.  compact: keep them (compaction itself comes later).",
        choices=("delete", "compact"),
        topic="cleanup.policy",
        dynamic=True,
    ),
    Setting(
        "log.retention.ms",
        LONG,
        None,
        "Delete segments older than this; -1 never.",
        least=-1,
        topic="retention.ms",
        dynamic=True,
    ),
    Setting("log.retention.minutes", INT, None, "The same in minutes.", least=-1),
    Setting("log.retention.hours", INT, 168, "The same in hours.", least=-1),
    Setting(
        "log.retention.bytes",
        LONG,
        -1,
        "Delete from the start of a larger log; -1 never.",
        least=-1,
        topic="retention.bytes",
        dynamic=True,
    ),
    Setting(
        "log.retention.check.interval.ms",
        LONG,
        300000,
        "How often to look for segments to delete.",
        least=1,
    ),
    Setting(
        "log.cleaner.delete.retention.ms",
        LONG,
        86400000,
        "How long compaction will keep tombstones.",
        least=0,
        topic="delete.retention.ms",
        dynamic=True,
    ),
    Setting(
        "log.cleaner.min.cleanable.ratio",
        DOUBLE,
        0.5,
        "How dirty a log must be for compaction.",
        least=0,
        most=1,
        topic="min.cleanable.dirty.ratio",
        dynamic=True,
    ),
    Setting(
        "log.cleaner.min.compaction.lag.ms",
        LONG,
        0,
        "How long compaction will leave a record alone.",
        least=0,
        topic="min.compaction.lag.ms",
        dynamic=True,
    ),
    Setting(
        "log.cleaner.max.compaction.lag.ms",
        LONG,
        LONG_MAX,
        "How long a record may stay uncompacted.",
        least=1,
        topic="max.compaction.lag.ms",
        dynamic=True,
    ),
]

COORDINATION = [
    Setting(
        "zookeeper.connect",
        STRING,
        "",
        "Empty: the embedded keeper.  ZooKeeper comes with clusters, in a later release.",
    ),
    Setting(
        "zookeeper.session.timeout.ms",
        INT,
        18000,
        _NO_EFFECT + "the embedded keeper has no session.",
        least=1,
    ),
    Setting(
        "zookeeper.connection.timeout.ms",
        INT,
        None,
        _NO_EFFECT + "the embedded keeper has no connection.",
        least=1,
    ),
]

GROUPS = {
    "Server basics": BASICS,
    "Socket server": SOCKET,
    "Log basics": LOG,
    "Flush policy": FLUSH,
    "Retention policy": RETENTION,
    "Coordination": COORDINATION,
}
SETTINGS: dict[str, Setting] = {s.name: s for group in GROUPS.values() for s in group}
TOPIC_SETTINGS: dict[str, Setting] = {s.topic: s for s in SETTINGS.values() if s.topic}

# A topic setting in milliseconds may be set on the broker in coarser units.
_COARSER = {
    "log.roll.ms": [("log.roll.hours", 3_600_000)],
    "log.roll.jitter.ms": [("log.roll.jitter.hours", 3_600_000)],
    "log.retention.ms": [("log.retention.minutes", 60_000), ("log.retention.hours", 3_600_000)],
}


@dataclass(frozen=True, slots=True)
class Settings:
    """What one broker goes by.  Read with ``settings["log.dirs"]``."""

    explicit: Mapping[str, Any] = field(default_factory=dict)
    topic_overrides: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    partition_counts: Mapping[str, int] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    @classmethod
    def of(cls, values: Mapping[str, Any] | None = None) -> Settings:
        """Check and take what the user said; old names are translated."""
        modern = settings_legacy.translate({k: text_of(v) for k, v in (values or {}).items()})
        explicit = {name: _known(name).parse(value) for name, value in modern.values.items()}
        for topic, overrides in modern.topic_overrides.items():
            check_topic_config(overrides, where=f"topic {topic}: ")
        result = cls(explicit, modern.topic_overrides, modern.partition_counts, modern.notes)
        result._check_together()
        return result

    def __getitem__(self, name: str) -> Any:
        if name in self.explicit:
            return self.explicit[name]
        setting = SETTINGS[name]
        for coarse, factor in _COARSER.get(name, []):
            value = self[coarse]
            if value is not None:
                return value if value < 0 else value * factor
        return setting.default

    def with_changes(self, changes: Mapping[str, Any]) -> Settings:
        """A copy with some settings changed (already parsed)."""
        explicit = {**self.explicit, **changes}
        return Settings(explicit, self.topic_overrides, self.partition_counts, self.notes)

    def _check_together(self) -> None:
        if not self["log.dirs"]:
            raise SettingError("log.dirs is empty; name at least one directory")
        if self["zookeeper.connect"]:
            raise SettingError(
                "zookeeper.connect: clusters on ZooKeeper come in a later release; "
                "leave it out to run one broker with the embedded keeper"
            )
        for name in ("listeners", "advertised.listeners"):
            for listener in self[name] or ():
                parse_listener(listener, name)


def _known(name: str) -> Setting:
    try:
        return SETTINGS[name]
    except KeyError:
        raise unknown_setting(name, SETTINGS) from None


def unknown_setting(name: str, known: Iterable[str]) -> SettingError:
    close = difflib.get_close_matches(name, list(known), n=1, cutoff=0.4)
    hint = f"; did you mean {close[0]}?" if close else ""
    return SettingError(f"{name}: there is no such setting{hint}")


def parse_listener(text: str, setting: str = "listeners") -> tuple[str, int]:
    """``PLAINTEXT://host:port`` to ``(host, port)``; an IPv6 host stands in brackets."""
    protocol, separator, address = text.partition("://")
    host, colon, port = address.rpartition(":")
    if not separator or not colon or not port.isdigit() or int(port) > 65535:
        raise SettingError(f"{setting}={text}: write it as PLAINTEXT://host:port")
    if protocol.upper() != "PLAINTEXT":
        raise SettingError(f"{setting}={text}: {protocol} is not supported yet; use PLAINTEXT")
    return host.removeprefix("[").removesuffix("]"), int(port)


def check_topic_config(values: Mapping[str, str | None], where: str = "") -> dict[str, Any]:
    """Parse a topic's own overrides, or say which one is wrong."""
    parsed = {}
    for name, value in values.items():
        setting = TOPIC_SETTINGS.get(name)
        if setting is None:
            error = unknown_setting(name, TOPIC_SETTINGS)
            raise SettingError(f"{where}{error}")
        try:
            parsed[name] = setting.parse(value)
        except SettingError as error:
            raise SettingError(f"{where}{str(error).replace(setting.name, name, 1)}") from None
    return parsed


@dataclass(frozen=True, slots=True)
class LogConfig:
    """What one log goes by; attributes are the topic settings' names with underscores."""

    segment_bytes: int
    segment_ms: int
    segment_jitter_ms: int
    index_interval_bytes: int
    segment_index_bytes: int
    file_delete_delay_ms: int
    max_message_bytes: int
    compression_type: str
    message_timestamp_type: str
    message_timestamp_before_max_ms: int
    message_timestamp_after_max_ms: int
    flush_messages: int
    flush_ms: int
    visibility: str
    cleanup_policy: tuple[str, ...]
    retention_ms: int
    retention_bytes: int
    min_insync_replicas: int

    @classmethod
    def of(cls, settings: Settings, overrides: Mapping[str, str] | None = None) -> LogConfig:
        """The broker's settings with a topic's own on top."""
        own = check_topic_config(overrides or {})

        def value(topic_name: str) -> Any:
            found = own.get(topic_name)
            return settings[TOPIC_SETTINGS[topic_name].name] if found is None else found

        values = {name: value(name.replace("_", ".")) for name in cls.__slots__}
        values["cleanup_policy"] = tuple(values["cleanup_policy"])
        values["segment_jitter_ms"] = values["segment_jitter_ms"] or 0
        if values["flush_ms"] is None:
            # Records that are visible only when flushed must be flushed by themselves.
            values["flush_ms"] = 1000 if values["visibility"] == "flushed" else LONG_MAX
        return cls(**values)


def read_properties(text: str) -> dict[str, str]:
    """A Java properties file: ``key=value`` lines, ``#`` comments, trailing ``\\``."""
    values: dict[str, str] = {}
    lines = iter(text.splitlines())
    for raw in lines:
        line = raw.strip()
        while line.endswith("\\"):
            line = line[:-1] + next(lines, "").strip()
        if not line or line[0] in "#!":
            continue
        for i, char in enumerate(line):
            if char in "=:":
                values[line[:i].strip()] = line[i + 1 :].strip()
                break
        else:
            raise SettingError(f"{line!r} is not a setting; write name=value")
    return values
