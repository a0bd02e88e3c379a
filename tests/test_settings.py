"""Settings: every kind, every refusal, and what wins when two say the same."""

from __future__ import annotations

import json
import sys
from typing import Any

import pytest

from tidelog.errors import SettingError
from tidelog.settings import (
    LogConfig,
    Settings,
    check_broker_config,
    check_topic_config,
    parse_listener,
    read_properties,
)
from tidelog.settings_table import (
    BOOL,
    DOUBLE,
    INT,
    INT_MAX,
    LIST,
    LONG,
    LONG_MAX,
    SETTINGS,
    STRING,
    TOPIC_SETTINGS,
    Setting,
    text_of,
)


def refusal(values: dict[str, Any]) -> str:
    with pytest.raises(SettingError) as refused:
        Settings.of(values)
    return str(refused.value)


# -- the table ----------------------------------------------------------------------


@pytest.mark.parametrize("setting", SETTINGS.values(), ids=lambda s: s.name)
def test_every_default_is_a_legal_value(setting: Setting) -> None:
    assert setting.doc
    if setting.default is not None and setting.default != "":
        assert setting.parse(text_of(setting.default)) == setting.default
    assert setting.parse(None) is None


def test_names_are_kafkas_and_unique() -> None:
    assert all(name == name.lower() and " " not in name for name in SETTINGS)
    topics = [setting.topic for setting in SETTINGS.values() if setting.topic]
    assert len(topics) == len(set(topics)) == len(TOPIC_SETTINGS)


@pytest.mark.parametrize("setting", SETTINGS.values(), ids=lambda s: s.name)
def test_every_range_is_kept(setting: Setting) -> None:
    if setting.kind not in (INT, LONG, DOUBLE):
        return
    most = (
        setting.most if setting.most is not None else (INT_MAX if setting.kind is INT else LONG_MAX)
    )
    assert setting.parse(str(most)) == most
    outside = ["inf" if most == sys.float_info.max else f"{int(most) + 1}"]
    if setting.least is not None:
        assert setting.parse(str(setting.least)) == setting.least
        outside.append(f"{int(setting.least) - 1}")
    for text in outside:
        with pytest.raises(SettingError, match=f"{setting.name}={text}"):
            setting.parse(text)


@pytest.mark.parametrize(
    "setting", [s for s in SETTINGS.values() if s.choices], ids=lambda s: s.name
)
def test_every_choice(setting: Setting) -> None:
    for choice in setting.choices:
        assert setting.parse(choice) == ([choice] if setting.kind is LIST else choice)
    allowed = {*setting.choices} | ({""} if setting.may_be_empty else set())
    for wrong in {"", "nonsense", setting.choices[-1].upper() + "x"} - allowed:
        with pytest.raises(SettingError, match="must be one of"):
            setting.parse(wrong)


@pytest.mark.parametrize(
    ("kind", "good", "bad"),
    [
        (BOOL, {"true": True, "FALSE": False, " True ": True}, ["", "1", "yes", "on"]),
        (INT, {"5": 5, "-7": -7, " 8 ": 8}, ["", "x", "1.5", "1e3", str(INT_MAX + 1)]),
        (LONG, {str(LONG_MAX): LONG_MAX}, ["", "x", str(LONG_MAX + 1), "9" * 5000]),
        (DOUBLE, {"0.5": 0.5, "1": 1.0}, ["", "x", "nan", "inf"]),
        (STRING, {"any thing": "any thing"}, []),
        (LIST, {"a, b,,c": ["a", "b", "c"], "": []}, []),
    ],
    ids=lambda value: getattr(value, "name", None),
)
def test_kinds(kind: Any, good: dict[str, Any], bad: list[str]) -> None:
    setting = Setting("some.name", kind, None, "doc")
    for text, value in good.items():
        assert setting.parse(text) == value
    for text in bad:
        with pytest.raises(SettingError, match=r"some\.name="):
            setting.parse(text)


def test_values_from_python() -> None:
    settings = Settings.of(
        {"auto.create.topics.enable": False, "num.partitions": 3, "log.dirs": ["a", "b"]}
    )
    assert settings["auto.create.topics.enable"] is False
    assert settings["num.partitions"] == 3
    assert settings["log.dirs"] == ["a", "b"]


def test_none_is_the_same_as_nothing() -> None:
    settings = Settings.of({"broker.rack": None, "num.partitions": None})
    assert settings["broker.rack"] is None
    assert settings["num.partitions"] == 1
    assert "num.partitions" not in settings.explicit


# -- refusals -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("num.partition", "num.partitions"),
        ("log.retention.hour", "log.retention.hours"),
        ("auto.create.topic.enable", "auto.create.topics.enable"),
        ("listener", "listeners"),
    ],
)
def test_a_name_that_is_nearly_right(name: str, hint: str) -> None:
    assert refusal({name: "1"}) == f"{name}: there is no such setting; did you mean {hint}?"


def test_a_name_like_no_other() -> None:
    assert refusal({"zzzz": "1"}) == "zzzz: there is no such setting"


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({"num.partitions": "zero"}, "num.partitions=zero: it must be a whole number"),
        ({"num.partitions": "0"}, "num.partitions=0: it must be between 1 and"),
        ({"log.dirs": ""}, "log.dirs is empty"),
        ({"listeners": "localhost:9092"}, "write it as PLAINTEXT://host:port"),
        ({"listeners": "SSL://localhost:9092"}, "SSL is not supported yet"),
        ({"advertised.listeners": "PLAINTEXT://x"}, "advertised.listeners=PLAINTEXT://x"),
        ({"log.cleanup.policy": "compact,forget"}, "must be one of delete, compact"),
    ],
)
def test_refusals_say_what_to_do(values: dict[str, Any], says: str) -> None:
    assert says in refusal(values)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("PLAINTEXT://host:9092", ("host", 9092)),
        ("plaintext://:0", ("", 0)),
        ("PLAINTEXT://[::1]:65535", ("::1", 65535)),
    ],
)
def test_listeners(text: str, found: tuple[str, int]) -> None:
    assert parse_listener(text) == found


@pytest.mark.parametrize("port", ["", "x", "-1", "65536", "²", "1.5"])
def test_ports_that_are_refused(port: str) -> None:
    with pytest.raises(SettingError, match="PLAINTEXT://host:port"):
        parse_listener(f"PLAINTEXT://host:{port}")


# -- what wins ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({}, 168 * 3_600_000),
        ({"log.retention.hours": "2"}, 7_200_000),
        ({"log.retention.hours": "2", "log.retention.minutes": "3"}, 180_000),
        (
            {"log.retention.hours": "2", "log.retention.minutes": "3", "log.retention.ms": "4"},
            4,
        ),
        ({"log.retention.hours": "-1"}, -1),
        ({"log.retention.minutes": "-1", "log.retention.hours": "5"}, -1),
        ({"log.retention.ms": "-1", "log.retention.minutes": "5"}, -1),
    ],
)
def test_retention_in_three_units(values: dict[str, str], expected: int) -> None:
    settings = Settings.of(values)
    assert settings["log.retention.ms"] == expected
    assert LogConfig.of(settings).retention_ms == expected
    assert LogConfig.of(settings, {"retention.ms": "99"}).retention_ms == 99


def test_roll_in_two_units() -> None:
    assert LogConfig.of(Settings.of()).segment_ms == 168 * 3_600_000
    assert LogConfig.of(Settings.of({"log.roll.hours": 1})).segment_ms == 3_600_000
    both = Settings.of({"log.roll.hours": 1, "log.roll.ms": 5, "log.roll.jitter.hours": 2})
    assert LogConfig.of(both).segment_ms == 5
    assert LogConfig.of(both).segment_jitter_ms == 7_200_000


def test_topic_over_broker_over_default() -> None:
    broker = Settings.of({"log.segment.bytes": 1000, "log.cleanup.policy": "compact"})
    assert LogConfig.of(Settings.of()).segment_bytes == 1 << 30
    assert LogConfig.of(broker).segment_bytes == 1000
    own = LogConfig.of(broker, {"segment.bytes": "2000", "cleanup.policy": "delete"})
    assert own.segment_bytes == 2000
    assert own.cleanup_policy == ("delete",)
    assert LogConfig.of(broker).cleanup_policy == ("compact",)


def test_flushing() -> None:
    assert LogConfig.of(Settings.of()).flush_ms == LONG_MAX
    assert LogConfig.of(Settings.of({"log.flush.scheduler.interval.ms": 50})).flush_ms == 50
    assert LogConfig.of(Settings.of(), {"visibility": "flushed"}).flush_ms == 1000
    own = LogConfig.of(Settings.of(), {"visibility": "flushed", "flush.ms": "7"})
    assert own.flush_ms == 7


def test_changes_while_running() -> None:
    settings = Settings.of({"log.retention.hours": 1})
    changed = settings.with_changes(check_broker_config({"log.retention.ms": "5"}))
    assert (settings["log.retention.ms"], changed["log.retention.ms"]) == (3_600_000, 5)
    with pytest.raises(SettingError, match="cannot be changed while the broker runs"):
        check_broker_config({"log.dirs": "x"})
    with pytest.raises(SettingError, match="did you mean"):
        check_broker_config({"log.retention.mss": "5"})


def test_topic_settings() -> None:
    assert check_topic_config({"retention.ms": "5", "cleanup.policy": "compact,delete"}) == {
        "retention.ms": 5,
        "cleanup.policy": ["compact", "delete"],
    }
    with pytest.raises(SettingError, match=r"^topic t: retention\.ms=x: it must be a whole"):
        check_topic_config({"retention.ms": "x"}, where="topic t: ")
    with pytest.raises(SettingError, match=r"log\.retention\.ms: there is no such.*retention\.ms"):
        check_topic_config({"log.retention.ms": "5"})


# -- properties files ---------------------------------------------------------------


def test_a_properties_file() -> None:
    text = """
# a comment
! another
# a comment that ends with a backslash \\
num.partitions=3
  log.dirs = /a, \\
      /b
broker.id:7
broker.rack=a=b:c
empty=
broker.id=8
"""
    assert read_properties(text) == {
        "num.partitions": "3",
        "log.dirs": "/a, /b",
        "broker.id": "8",
        "broker.rack": "a=b:c",
        "empty": "",
    }


def test_a_line_that_is_no_setting() -> None:
    with pytest.raises(SettingError, match="'what is this' is not a setting"):
        read_properties("a=1\nwhat is this\n")


def test_backslashes() -> None:
    assert read_properties("a=x\\") == {"a": "x"}  # nothing follows
    assert read_properties("a=c:\\\\\nb=2\n") == {"a": "c:\\", "b": "2"}  # an escaped one
    assert read_properties("a=1\\\n\nb=2") == {"a": "1", "b": "2"}
    assert read_properties("a\\=b=c\\:d\\=") == {"a=b": "c:d="}  # as Java writes them


def test_text_of_round_trips() -> None:
    for value in (True, False, 5, -1, 0.5, "x", ["a", "b"]):
        assert isinstance(text_of(value), str)
    assert text_of(["a", "b"]) == "a,b"
    assert json.loads(text_of(True)) is True


def test_kafkas_other_settings_are_taken_with_a_note_and_protection_is_not_promised():
    settings = Settings.of({"quota.window.num": 1, "num.partitions": 3})
    assert settings["num.partitions"] == 3
    assert "quota.window.num" in settings.notes[0]
    with pytest.raises(SettingError, match="TLS, SASL and ACLs are not supported yet"):
        Settings.of({"ssl.keystore.location": "x"})


def test_every_problem_is_named_at_once():
    with pytest.raises(SettingError, match=r"bogus\.thing.*log\.segment\.bytes"):
        Settings.of({"bogus.thing": 1, "log.segment.byte": 2})


@pytest.mark.parametrize(
    ("name", "good", "bad"),
    [
        ("compression.gzip.level", ("-1", "1", "9"), ("0", "-2", "10", "fast")),
        ("compression.lz4.level", ("1", "17"), ("0", "18", "-1")),
        ("compression.zstd.level", ("-131072", "22"), ("-131073", "23")),
        ("local.retention.ms", ("-2", "-1", "5"), ("-3",)),
        ("local.retention.bytes", ("-2", "-1", "5"), ("-3",)),
        ("remote.storage.enable", ("false",), ("true", "maybe")),
        ("remote.log.copy.disable", ("false", "true"), ("maybe",)),
        ("remote.log.delete.on.disable", ("false", "true"), ("maybe",)),
        ("cleanup.policy", ("", "delete", "compact,delete"), ("squash", "delete,squash")),
    ],
)
def test_topic_settings_of_kafka_4(name: str, good: tuple[str, ...], bad: tuple[str, ...]) -> None:
    for value in good:
        LogConfig.of(Settings.of(), {name: value})
    for value in bad:
        with pytest.raises(SettingError, match=name):
            check_topic_config({name: value})


def test_an_empty_cleanup_policy_is_not_the_brokers_default() -> None:
    assert LogConfig.of(Settings.of(), {"cleanup.policy": ""}).cleanup_policy == ()
    assert LogConfig.of(Settings.of({"log.cleanup.policy": ""})).cleanup_policy == ()
