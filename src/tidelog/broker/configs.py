"""Settings as the admin APIs show and change them.

Every value is shown with where it comes from, most specific first: the topic's own, this
broker's dynamic setting, all brokers' dynamic setting, the file or ``--set``, the default.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from tidelog.coordination.keeper import KeeperError
from tidelog.coordination.metadata import TopicInfo
from tidelog.coordination.paths import DEFAULT_ENTITY
from tidelog.errors import ApiError, ErrorCode, SettingError
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


@dataclass(frozen=True, slots=True)
class Described:
    """One setting and where its value comes from."""

    name: str
    value: str | None
    source: int
    read_only: bool
    setting: Setting
    synonyms: tuple[tuple[str, str | None, int], ...]


def describe_topic(broker: Broker, topic: TopicInfo) -> list[Described]:
    """Every topic setting with its effective value."""
    static = broker.settings.topic_overrides.get(topic.name, {})
    effective = LogConfig.of(broker.settings, {**static, **topic.config})
    rows = []
    for name, setting in sorted(TOPIC_SETTINGS.items()):
        chain = _broker_chain(broker, setting)
        if name in static:
            chain.insert(0, (name, static[name], STATIC_SOURCE))
        if name in topic.config:
            chain.insert(0, (name, topic.config[name], TOPIC_SOURCE))
        shown = getattr(effective, name.replace(".", "_"), None)
        value = chain[0][1] if shown is None else text_of(shown)
        rows.append(Described(name, value, chain[0][2], False, setting, tuple(chain)))
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
        chain = _broker_chain(broker, setting)
        value = _shown(broker.settings[name])
        rows.append(Described(name, value, chain[0][2], not setting.dynamic, setting, tuple(chain)))
    return rows


def describe_group(broker: Broker, group_id: str) -> list[Described]:
    """What a consumer group may have of its own, whether there is such a group or not."""
    config = broker.metadata.group_configs.get(group_id, {})
    rows = []
    for name, setting in sorted(GROUP_SETTINGS.items()):
        chain = _broker_chain(broker, setting)
        if name in config:
            chain.insert(0, (name, config[name], GROUP_SOURCE))
        rows.append(Described(name, chain[0][1], chain[0][2], False, setting, tuple(chain)))
    return rows


def _broker_chain(broker: Broker, setting: Setting) -> list[tuple[str, str | None, int]]:
    name = setting.name
    chain: list[tuple[str, str | None, int]] = []
    configs = broker.metadata.broker_configs
    for entity, source in (
        (str(broker.broker_id), BROKER_SOURCE),
        (DEFAULT_ENTITY, ALL_BROKERS_SOURCE),
    ):
        if name in configs.get(entity, {}):
            chain.append((name, configs[entity][name], source))
    if name in broker.static_settings.explicit:
        chain.append((name, _shown(broker.static_settings.explicit[name]), STATIC_SOURCE))
    for coarse, _ in COARSER.get(name, []):  # log.retention.hours for log.retention.ms, ...
        if coarse in broker.static_settings.explicit:
            value = _shown(broker.static_settings.explicit[coarse])
            chain.append((coarse, value, STATIC_SOURCE))
        elif SETTINGS[coarse].default is not None:
            chain.append((coarse, _shown(SETTINGS[coarse].default), DEFAULT_SOURCE))
    if setting.default is not None or not chain:
        chain.append((name, _shown(setting.default), DEFAULT_SOURCE))
    return chain


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


class Resource(Protocol):
    """Something with settings, as a request names it."""

    resource_type: int
    resource_name: str


async def outcome(resource: Resource, change: Awaitable[None], row: Callable[..., R]) -> R:
    """How a change of settings has ended, as the row of an answer."""
    code, message = ErrorCode.NONE, None
    try:
        await change
    except ApiError as error:
        code, message = error.code, error.message
    except (KeeperError, OSError) as error:
        code, message = ErrorCode.KAFKA_STORAGE_ERROR, str(error)
    return row(
        error_code=code,
        error_message=message,
        resource_type=resource.resource_type,
        resource_name=resource.resource_name,
    )
