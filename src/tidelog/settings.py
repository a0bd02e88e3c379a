"""Every setting: Kafka's name, type, default and meaning, and what checks its value.

``Settings`` is what one broker was told: a properties file, ``--set`` or a dict.
``LogConfig`` is what one log goes by: the broker's settings with a topic's own
overrides on top.  An unknown setting, a wrong type or an impossible value
is refused with the name, the reason and the nearest valid name.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from tidelog import settings_legacy
from tidelog.errors import SettingError
from tidelog.settings_table import GROUP_SETTINGS, SETTINGS, TOPIC_SETTINGS, Setting, text_of

_PROPERTY = re.compile(r"((?:[^=:\\]|\\.)*)[=:](.*)")

# The default of max.decompressed.bytes: a multiple of max.message.bytes, and at least so much.
_DECOMPRESSED_RATIO = 16
_LEAST_DECOMPRESSED = 16 * 1024 * 1024

# A topic setting in milliseconds may be set on the broker in coarser units.
COARSER = {
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
        given = {k: text_of(v) for k, v in (values or {}).items() if v is not None}
        modern = settings_legacy.translate(given)
        explicit, notes, problems = {}, list(modern.notes), list[str]()
        for name, value in modern.values.items():
            if name not in SETTINGS and settings_legacy.is_kafka_setting(name):
                notes.append(f"{name} is Kafka's, but has no effect in this release")
                continue
            try:
                explicit[name] = _known(name).parse(value)
            except SettingError as error:
                problems.append(str(error))
        if problems:
            raise SettingError("; ".join(problems))
        for topic, overrides in modern.topic_overrides.items():
            check_topic_config(overrides, where=f"topic {topic}: ")
        result = cls(explicit, modern.topic_overrides, modern.partition_counts, tuple(notes))
        result._check_together()
        return result

    def __getitem__(self, name: str) -> Any:
        if name in self.explicit:
            return self.explicit[name]
        setting = SETTINGS[name]
        for coarse, factor in COARSER.get(name, []):
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
        for name in ("listeners", "advertised.listeners"):
            for listener in self[name] or ():
                parse_listener(listener, name)


def _known(name: str) -> Setting:
    try:
        return SETTINGS[name]
    except KeyError:
        raise unknown_setting(name, SETTINGS) from None


def unknown_setting(name: str, known: Iterable[str]) -> SettingError:
    close = difflib.get_close_matches(name, list(known), n=1, cutoff=0.7)
    hint = f"; did you mean {close[0]}?" if close else ""
    return SettingError(f"{name}: there is no such setting{hint}")


def parse_listener(text: str, setting: str = "listeners") -> tuple[str, int]:
    """``PLAINTEXT://host:port`` to ``(host, port)``; an IPv6 host stands in brackets."""
    protocol, separator, address = text.partition("://")
    host, colon, port = address.rpartition(":")
    if not separator or not colon or not port.isdecimal() or int(port) > 65535:
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
    least, most = (parsed.get(f"{end}.compaction.lag.ms") for end in ("min", "max"))
    if least is not None and most is not None and least > most:
        raise SettingError(
            f"{where}min.compaction.lag.ms={least}: it must not be above "
            f"max.compaction.lag.ms={most}"
        )
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
    max_decompressed_bytes: int
    compression_type: str
    compression_gzip_level: int
    compression_lz4_level: int
    compression_zstd_level: int
    message_timestamp_type: str
    message_timestamp_before_max_ms: int
    message_timestamp_after_max_ms: int
    flush_messages: int
    flush_ms: int
    visibility: str
    cleanup_policy: tuple[str, ...]
    retention_ms: int
    retention_bytes: int
    delete_retention_ms: int
    min_cleanable_dirty_ratio: float
    min_compaction_lag_ms: int
    max_compaction_lag_ms: int
    min_insync_replicas: int
    leader_replication_throttled_replicas: tuple[str, ...]
    follower_replication_throttled_replicas: tuple[str, ...]

    @property
    def compression_level(self) -> int | None:
        """The level that belongs to ``compression_type``, if that has levels."""
        level: int | None = getattr(self, f"compression_{self.compression_type}_level", None)
        return level

    @classmethod
    def of(cls, settings: Settings, overrides: Mapping[str, str] | None = None) -> LogConfig:
        """The broker's settings with a topic's own on top."""
        own = check_topic_config(overrides or {})

        def value(topic_name: str) -> Any:
            found = own.get(topic_name)
            return settings[TOPIC_SETTINGS[topic_name].name] if found is None else found

        values = {name: value(name.replace("_", ".")) for name in cls.__slots__}
        values = {k: tuple(v) if isinstance(v, list) else v for k, v in values.items()}
        values["segment_jitter_ms"] = values["segment_jitter_ms"] or 0
        if values["max_decompressed_bytes"] is None:
            values["max_decompressed_bytes"] = max(
                _LEAST_DECOMPRESSED, _DECOMPRESSED_RATIO * values["max_message_bytes"]
            )
        if values["flush_ms"] is None:
            interval: int = settings["log.flush.scheduler.interval.ms"]
            # Records that are visible only when flushed must be flushed by themselves.
            flushed = values["visibility"] == "flushed"
            values["flush_ms"] = min(interval, 1000) if flushed else interval
        return cls(**values)


def read_properties(text: str) -> dict[str, str]:
    """A Java properties file: ``key=value`` lines, ``#`` comments, ``\\`` before what is
    meant literally, and at the end of a line that goes on."""
    values: dict[str, str] = {}
    lines = iter(text.splitlines())
    for raw in lines:
        line = raw.strip()
        if not line or line[0] in "#!":
            continue
        while (len(line) - len(line.rstrip("\\"))) % 2:
            line = line[:-1] + next(lines, "").strip()
        found = _PROPERTY.fullmatch(line)
        if found is None:
            raise SettingError(f"{line!r} is not a setting; write name=value")
        name, value = (re.sub(r"\\(.)", r"\1", part).strip() for part in found.groups())
        values[name] = value
    return values


def check_broker_config(values: Mapping[str, str]) -> dict[str, Any]:
    """Parse dynamic broker settings, or say which one may not be changed."""
    parsed = {}
    for name, value in values.items():
        setting = _known(name)
        if not setting.dynamic:
            raise SettingError(
                f"{name} cannot be changed while the broker runs: restart it with --set"
            )
        parsed[name] = setting.parse(value)
    return parsed


def check_group_config(values: Mapping[str, str], settings: Settings) -> dict[str, int]:
    """Parse what a consumer group has of its own, or say which one is wrong."""
    parsed: dict[str, int] = {}
    for name, value in values.items():
        setting = GROUP_SETTINGS.get(name)
        if setting is None:
            raise unknown_setting(name, GROUP_SETTINGS)
        try:
            parsed[name] = setting.parse(value)
        except SettingError as error:
            raise SettingError(str(error).replace(setting.name, name, 1)) from None
        for end, wrong in (("min", int.__lt__), ("max", int.__gt__)):
            limit = f"group.consumer.{end}.{name.removeprefix('consumer.')}"
            if wrong(parsed[name], settings[limit]):
                raise SettingError(f"{name}={value}: {limit} is {settings[limit]}")
    session, heartbeat = (parsed.get(name, settings[f"group.{name}"]) for name in GROUP_SETTINGS)
    if values and session <= heartbeat:
        raise SettingError(
            f"consumer.session.timeout.ms={session}: it must be above "
            f"consumer.heartbeat.interval.ms={heartbeat}"
        )
    return parsed
