"""The names that Kafka 0.7 gave its settings, and what they are called now.

Old configuration files still start a broker; each old name is answered with a note
that says the modern one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from tidelog.errors import SettingError

RENAMED = {
    "brokerid": "broker.id",
    "node.id": "broker.id",
    "log.dir": "log.dirs",
    "socket.send.buffer": "socket.send.buffer.bytes",
    "socket.receive.buffer": "socket.receive.buffer.bytes",
    "max.socket.request.bytes": "socket.request.max.bytes",
    "max.message.size": "message.max.bytes",
    "num.threads": "num.io.threads",
    "log.file.size": "log.segment.bytes",
    "log.retention.size": "log.retention.bytes",
    "log.flush.interval": "log.flush.interval.messages",
    "log.default.flush.interval.ms": "log.flush.interval.ms",
    "log.default.flush.scheduler.interval.ms": "log.flush.scheduler.interval.ms",
    "zk.connect": "zookeeper.connect",
    "zk.sessiontimeout.ms": "zookeeper.session.timeout.ms",
    "zk.connectiontimeout.ms": "zookeeper.connection.timeout.ms",
}

# Maps of the form ``topic:value,topic:value``: the topic setting, and the unit in its terms.
PER_TOPIC = {
    "topic.log.file.size": ("segment.bytes", 1),
    "topic.log.roll.hours": ("segment.ms", 3_600_000),
    "topic.log.retention.hours": ("retention.ms", 3_600_000),
    "topic.log.retention.size": ("retention.bytes", 1),
    "topic.flush.intervals.ms": ("flush.ms", 1),
}

GONE = {
    "monitoring.period.secs": "there is no such monitor any more",
    "max.topic.name.length": "a topic name has at most 249 characters",
}


# Settings of Kafka for what is not there yet (or is done another way here): a file with them
# starts a broker, and the broker says that they have no effect.
_KAFKA_PREFIXES = (
    "alter.", "authorizer.", "auto.leader.", "background.", "broker.id.", "client.quota.",
    "compression.gzip.", "compression.lz4.", "compression.zstd.", "connection.failed.",
    "connections.max.reauth.", "control.", "controlled.", "controller.", "create.topic.",
    "early.start.", "eligible.", "fetch.purgatory.", "group.", "inter.broker.", "initial.broker.",
    "leader.", "listener.", "log.cleaner.", "log.deletion.", "log.dir.", "log.local.",
    "max.connection", "metadata.", "metric", "num.replica.", "offset.", "offsets.", "process.",
    "producer.", "purgatory.", "queued.", "quota.", "remote.", "replica.", "request.",
    "reserved.", "server.max.", "share.", "socket.connection.", "telemetry.", "transaction.",
    "transactional.", "unstable.", "zookeeper.",
)  # fmt: skip
# These promise protection: ignoring them in silence would be a lie.
_REFUSED_PREFIXES = ("sasl.", "ssl.", "security.", "password.", "delegation.", "principal.")


def is_kafka_setting(name: str) -> bool:
    """Is this a setting of Kafka that may be left out of account here?"""
    if name.startswith(_REFUSED_PREFIXES):
        raise SettingError(f"{name}: TLS, SASL and ACLs are not supported yet; leave it out")
    return name.startswith(_KAFKA_PREFIXES)


@dataclass(slots=True)
class Modern:
    """Settings under their modern names."""

    values: dict[str, str] = field(default_factory=dict)
    topic_overrides: dict[str, dict[str, str]] = field(default_factory=dict)
    partition_counts: dict[str, int] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


def translate(values: Mapping[str, str]) -> Modern:
    """Give every old name its modern one.  A modern name beside it wins."""
    modern = Modern()
    notes: list[str] = []
    renamed: dict[str, str] = {}
    address: dict[str, str] = {}
    without_zookeeper = False
    for name, value in values.items():
        if name in RENAMED:
            renamed[RENAMED[name]] = value
            notes.append(f"{name} is called {RENAMED[name]} now")
        elif name == "log.cleanup.interval.mins":
            renamed["log.retention.check.interval.ms"] = str(_whole(name, value) * 60_000)
            notes.append(f"{name} is called log.retention.check.interval.ms now (in ms)")
        elif name in PER_TOPIC:
            setting, factor = PER_TOPIC[name]
            for topic, amount in _pairs(name, value):
                modern.topic_overrides.setdefault(topic, {})[setting] = str(amount * factor)
            notes.append(f"{name} is the topic setting {setting} now: tidelog configs alter")
        elif name == "topic.partition.count.map":
            modern.partition_counts.update(_pairs(name, value))
            if any(count < 1 for count in modern.partition_counts.values()):
                raise SettingError(f"{name}={value}: a topic has at least one partition")
            notes.append(f"{name} still works; tidelog topics create --partitions replaces it")
        elif name in ("hostname", "host.name", "port"):
            address[name] = value
            notes.append(f"{name} is part of listeners now: PLAINTEXT://host:port")
        elif name == "enable.zookeeper":
            without_zookeeper = value.strip().lower() == "false"
            notes.append("enable.zookeeper is gone: leave zookeeper.connect empty instead")
        elif name in GONE:
            notes.append(f"{name} is gone: {GONE[name]}")
        else:
            modern.values[name] = value
    if without_zookeeper:
        renamed["zookeeper.connect"] = ""
    if address and "listeners" not in values:
        host = address.get("hostname", address.get("host.name", ""))
        renamed["listeners"] = f"PLAINTEXT://{host}:{address.get('port', '9092')}"
    modern.values = {**renamed, **modern.values}
    modern.notes = tuple(notes)
    return modern


def _pairs(name: str, text: str) -> list[tuple[str, int]]:
    pairs = []
    for part in filter(None, (piece.strip() for piece in text.split(","))):
        topic, colon, amount = part.rpartition(":")
        if not colon or not topic:
            raise SettingError(f"{name}={text}: write it as topic:number,topic:number")
        pairs.append((topic.strip(), _whole(name, amount)))
    return pairs


def _whole(name: str, text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise SettingError(f"{name}={text}: it must be a whole number") from None
