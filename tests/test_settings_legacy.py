"""Kafka 0.7's names still start a broker, each with a note that says the modern one."""

from __future__ import annotations

import pytest

from tidelog.errors import SettingError
from tidelog.settings import LogConfig, Settings
from tidelog.settings_legacy import GONE, PER_TOPIC, RENAMED
from tidelog.settings_table import SETTINGS, TOPIC_SETTINGS


@pytest.mark.parametrize(("old", "new"), RENAMED.items())
def test_renamed(old: str, new: str) -> None:
    assert new in SETTINGS
    value = {"zookeeper.connect": "", "log.dirs": "/x"}.get(new, "4096")
    settings = Settings.of({old: value})
    assert settings[new] == Settings.of({new: value})[new]
    assert settings.notes == (f"{old} is called {new} now",)


def test_the_modern_name_wins() -> None:
    for values in ({"brokerid": "1", "broker.id": "2"}, {"broker.id": "2", "brokerid": "1"}):
        assert Settings.of(values)["broker.id"] == 2


@pytest.mark.parametrize("old", PER_TOPIC)
def test_maps_per_topic(old: str) -> None:
    setting, factor = PER_TOPIC[old]
    assert setting in TOPIC_SETTINGS
    settings = Settings.of({old: "orders:20, clicks.raw:300 ,"})
    assert settings.topic_overrides == {
        "orders": {setting: str(20 * factor)},
        "clicks.raw": {setting: str(300 * factor)},
    }
    own = LogConfig.of(settings, settings.topic_overrides["orders"])
    assert getattr(own, setting.replace(".", "_")) == 20 * factor
    assert setting in settings.notes[0]


def test_maps_add_up() -> None:
    settings = Settings.of(
        {"topic.log.retention.hours": "t:1", "topic.log.file.size": "t:5000", "num.partitions": 2}
    )
    assert settings.topic_overrides == {"t": {"retention.ms": "3600000", "segment.bytes": "5000"}}
    assert settings["num.partitions"] == 2


def test_partition_counts() -> None:
    settings = Settings.of({"topic.partition.count.map": "a:3,b:5"})
    assert settings.partition_counts == {"a": 3, "b": 5}


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({"topic.log.file.size": "orders"}, "write it as topic:number,topic:number"),
        ({"topic.log.file.size": ":5"}, "write it as topic:number,topic:number"),
        ({"topic.log.file.size": "t:x"}, "it must be a whole number"),
        ({"topic.log.file.size": "t:1"}, "topic t: segment.bytes=1: it must be between 14"),
        ({"topic.partition.count.map": "t:0"}, "topic.partition.count.map=t:0"),
        ({"log.cleanup.interval.mins": "x"}, "log.cleanup.interval.mins=x"),
        ({"max.message.size": "x"}, "message.max.bytes=x"),
    ],
)
def test_refusals(values: dict[str, str], says: str) -> None:
    with pytest.raises(SettingError) as refused:
        Settings.of(values)
    assert says in str(refused.value)


@pytest.mark.parametrize(
    ("values", "listener"),
    [
        ({"port": "9999"}, "PLAINTEXT://:9999"),
        ({"hostname": "h"}, "PLAINTEXT://h:9092"),
        ({"host.name": "h", "port": "1"}, "PLAINTEXT://h:1"),
        ({"hostname": "old", "host.name": "older", "port": "1"}, "PLAINTEXT://old:1"),
        ({"port": "1", "listeners": "PLAINTEXT://:2"}, "PLAINTEXT://:2"),
    ],
)
def test_host_and_port(values: dict[str, str], listener: str) -> None:
    assert Settings.of(values)["listeners"] == [listener]


def test_other_units_and_what_is_gone() -> None:
    assert Settings.of({"log.cleanup.interval.mins": "10"})["log.retention.check.interval.ms"] == (
        600_000
    )
    for name, why in GONE.items():
        assert Settings.of({name: "5"}).notes == (f"{name} is gone: {why}",)


@pytest.mark.parametrize("turn", [1, -1])
def test_without_zookeeper(turn: int) -> None:
    """``enable.zookeeper=false`` stands, wherever it is in the file."""
    lines = [("enable.zookeeper", "false"), ("zk.connect", "localhost:2181")][::turn]
    settings = Settings.of(dict(lines))
    assert settings["zookeeper.connect"] == ""
    assert len(settings.notes) == 2


def test_a_whole_file_of_0_7() -> None:
    settings = Settings.of(
        {
            "brokerid": "0",
            "hostname": "localhost",
            "port": "9092",
            "num.threads": "8",
            "socket.send.buffer": "1048576",
            "socket.receive.buffer": "1048576",
            "max.socket.request.bytes": "104857600",
            "log.dir": "/tmp/kafka-logs",
            "num.partitions": "1",
            "topic.partition.count.map": "topic1:3,topic2:4",
            "log.flush.interval": "10000",
            "log.default.flush.interval.ms": "1000",
            "topic.flush.intervals.ms": "topic1:1000,topic2:3000",
            "log.default.flush.scheduler.interval.ms": "1000",
            "log.retention.hours": "168",
            "log.file.size": "536870912",
            "log.cleanup.interval.mins": "1",
            "enable.zookeeper": "false",
            "zk.connect": "localhost:2181",
            "zk.connectiontimeout.ms": "1000000",
        }
    )
    assert settings["log.dirs"] == ["/tmp/kafka-logs"]
    assert settings["log.segment.bytes"] == 536870912
    assert settings["listeners"] == ["PLAINTEXT://localhost:9092"]
    assert settings.topic_overrides["topic2"] == {"flush.ms": "3000"}
