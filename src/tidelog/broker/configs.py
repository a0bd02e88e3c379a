"""Settings as the admin APIs show and change them.

Every value is shown with where it comes from, most specific first: the topic's own, this
broker's dynamic setting, all brokers' dynamic setting, the file or ``--set``, the default.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import dropwhile
from typing import TYPE_CHECKING, Any, TypeVar

from tidelog.errors import ApiError, ErrorCode, SettingError
from tidelog.keeper.paths import DEFAULT_ENTITY
from tidelog.metadata import TopicInfo
from tidelog.settings import (
    COARSER,
    LogConfig,
    check_broker_config,
    check_group_config,
    check_topic_config,
)
from tidelog.settings_table import (
    GROUP_SETTINGS,
    LIST,
    SETTINGS,
    TOPIC_SETTINGS,
    Setting,
    text_of,
)

if TYPE_CHECKING:
    from tidelog.broker.broker import Broker

R = TypeVar("R")

# Resource types and sources, by Kafka's numbers.
TOPIC, BROKER, GROUP = 2, 4, 32
TOPIC_SOURCE, BROKER_SOURCE, ALL_BROKERS_SOURCE, STATIC_SOURCE, DEFAULT_SOURCE = 1, 2, 3, 4, 5
GROUP_SOURCE = 8

# Operations of IncrementalAlterConfigs.
SET, DELETE, APPEND, SUBTRACT = 0, 1, 2, 3


Synonym = tuple[str, str | None, int]  # name, value, source


@dataclass(frozen=True, slots=True)
class Described:
    """One setting and where its value comes from."""

    name: str
    value: str | None
    source: int
    read_only: bool
    setting: Setting
    synonyms: tuple[Synonym, ...]


def describe_topic(broker: Broker, topic: TopicInfo) -> list[Described]:
    """Every topic setting with its effective value."""
    static = broker.settings.topic_overrides.get(topic.name, {})
    effective = LogConfig.of(broker.settings, {**static, **topic.config})
    rows = []
    for name, setting in sorted(TOPIC_SETTINGS.items()):
        own: list[Synonym] = [
            (name, values[name], source)
            for values, source in ((topic.config, TOPIC_SOURCE), (static, STATIC_SOURCE))
            if name in values
        ]
        row = _described(broker, name, setting, own)
        shown = getattr(effective, name.replace(".", "_"), None)
        rows.append(row if shown is None else replace(row, value=text_of(shown)))
    return rows


def describe_broker(broker: Broker, entity: str) -> list[Described]:
    """Every broker setting; for all brokers (an empty name) only the dynamic ones."""
    if entity == "":
        config = broker.metadata.broker_configs.get(DEFAULT_ENTITY, {})
        return [
            Described(n, v, ALL_BROKERS_SOURCE, False, SETTINGS[n], ((n, v, ALL_BROKERS_SOURCE),))
            for n, v in sorted(config.items())
        ]
    rows = []
    for name, setting in sorted(SETTINGS.items()):
        row = _described(broker, name, setting, [])
        value = _shown(broker.settings[name])
        rows.append(replace(row, value=value, read_only=not setting.dynamic))
    return rows


def describe_group(broker: Broker, group_id: str) -> list[Described]:
    """What a consumer group may have of its own, whether there is such a group or not."""
    config = broker.metadata.group_configs.get(group_id, {})
    rows = []
    for name, setting in sorted(GROUP_SETTINGS.items()):
        own = [(name, config[name], GROUP_SOURCE)] if name in config else []
        rows.append(_described(broker, name, setting, own))
    return rows


def _described(broker: Broker, name: str, setting: Setting, own: Sequence[Synonym]) -> Described:
    """A setting that a topic or a group may have of its own, and what is below that."""
    given = _given(broker, setting)
    first = (*own, *given, (name, None, DEFAULT_SOURCE))[0]
    # As in Kafka, coarser ones are synonyms only behind the setting itself: while
    # log.retention.ms is not set, log.retention.hours is not named.
    synonyms = (*own, *dropwhile(lambda row: row[0] != setting.name, given))
    return Described(name, first[1], first[2], False, setting, synonyms)


def _given(broker: Broker, setting: Setting) -> list[Synonym]:
    """Where a setting of the broker, or a coarser one for it, has a value; what counts first."""
    names = [setting.name, *(coarse for coarse, _ in COARSER.get(setting.name, []))]
    configs = broker.metadata.broker_configs
    sources: list[tuple[Mapping[str, Any], int]] = [
        (configs.get(str(broker.broker_id), {}), BROKER_SOURCE),
        (configs.get(DEFAULT_ENTITY, {}), ALL_BROKERS_SOURCE),
        (broker.static_settings.explicit, STATIC_SOURCE),
        ({name: SETTINGS[name].default for name in names}, DEFAULT_SOURCE),
    ]
    return [
        (name, text_of(values[name]), source)
        for values, source in sources
        for name in names
        if values.get(name) is not None
    ]


def _shown(value: Any) -> str | None:
    return None if value is None else text_of(value)


def current_config(broker: Broker, kind: int, name: str) -> dict[str, str]:
    """What is set on a resource itself; an error if there is no such resource."""
    if kind == TOPIC:
        topic = broker.metadata.topics.get(name)
        if topic is None:
            raise ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no topic {name!r}")
        return dict(topic.config)
    if kind == BROKER:
        return dict(broker.metadata.broker_configs.get(_entity(broker, name), {}))
    if kind == GROUP:
        if not name:
            raise ApiError(ErrorCode.INVALID_REQUEST, "the group id is empty")
        return dict(broker.metadata.group_configs.get(name, {}))
    message = f"resource type {kind} has no settings here; topics are 2, brokers 4, groups 32"
    raise ApiError(ErrorCode.INVALID_REQUEST, message)


def _entity(broker: Broker, name: str) -> str:
    if name == "":
        return DEFAULT_ENTITY
    if name != str(broker.broker_id):
        raise ApiError(
            ErrorCode.INVALID_REQUEST,
            f"there is no broker {name!r}: this one is {broker.broker_id}, '' means all",
        )
    return name


def apply_operation(
    kind: int, config: dict[str, str], name: str, operation: int, value: str | None
) -> None:
    """One change of IncrementalAlterConfigs, in place."""
    known = {TOPIC: TOPIC_SETTINGS, GROUP: GROUP_SETTINGS}.get(kind, SETTINGS)
    if operation == DELETE:
        config.pop(name, None)  # of an unknown setting too: MirrorMaker 2 deletes what it may have
        return
    if value is None:
        raise ApiError(ErrorCode.INVALID_REQUEST, f"{name}: a value is missing")
    if operation == SET:
        config[name] = value
        return
    setting = known.get(name)
    if setting is None or setting.kind.code != LIST.code:
        raise ApiError(ErrorCode.INVALID_CONFIG, f"{name} is not a list; append and subtract are")
    items = LIST.parse(config.get(name, text_of(setting.default)))
    given = LIST.parse(value)
    if operation == APPEND:
        items += [item for item in given if item not in items]
    elif operation == SUBTRACT:
        items = [item for item in items if item not in given]
    else:
        raise ApiError(ErrorCode.INVALID_REQUEST, f"there is no operation {operation}")
    config[name] = ",".join(items)


async def replace_config(
    broker: Broker, kind: int, name: str, config: Mapping[str, str], *, validate_only: bool
) -> None:
    """Check a resource's new settings and, unless only asked to check, use them."""
    try:
        if kind == TOPIC:
            check_topic_config(config)
        elif kind == GROUP:
            check_group_config(config, broker.settings)
        else:
            check_broker_config(config)
    except SettingError as error:
        raise ApiError(ErrorCode.INVALID_CONFIG, str(error)) from error
    if validate_only:
        return
    if kind == TOPIC:
        await broker.controller.set_topic_config(name, config)
    elif kind == GROUP:
        await broker.controller.set_group_config(name, config)
    else:
        await broker.controller.set_broker_config(_entity(broker, name), config)
