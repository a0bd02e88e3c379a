"""Every znode: where it is and what it holds.  The same as Kafka's up to 3.9."""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import quote, unquote

CLUSTER_ID = "/cluster/id"
BROKER_IDS = "/brokers/ids"
TOPICS = "/brokers/topics"
CONTROLLER = "/controller"
CONTROLLER_EPOCH = "/controller_epoch"
CONFIG_TOPICS = "/config/topics"
CONFIG_BROKERS = "/config/brokers"
CONFIG_GROUPS = "/config/groups"
CONFIG_CHANGES = "/config/changes"
CONFIG_CHANGE = "/config/changes/config_change_"
LOG_DIR_EVENTS = "/log_dir_event_notification"
LOG_DIR_EVENT = "/log_dir_event_notification/log_dir_event_"
PRODUCER_IDS = "/latest_producer_id_block"
DELETED_TOPICS = "/admin/delete_topics"
SETTLED = "/tidelog/settled"  # ours: the logs on disk have been matched with the registry once

DEFAULT_ENTITY = "<default>"  # settings for every broker

# Made when the first broker starts, so that watches and listings always find them.
PERSISTENT = (
    "/consumers",
    BROKER_IDS,
    TOPICS,
    CONFIG_CHANGES,
    DELETED_TOPICS,
    "/brokers/seqid",
    "/isr_change_notification",
    LOG_DIR_EVENTS,
    PRODUCER_IDS,
    CONFIG_TOPICS,
    "/config/clients",
    "/config/users",
    CONFIG_BROKERS,
    CONFIG_GROUPS,
    "/config/ips",
)


def broker(broker_id: int) -> str:
    return f"{BROKER_IDS}/{broker_id}"


def topic(name: str) -> str:
    return f"{TOPICS}/{name}"


def partitions(name: str) -> str:
    return f"{TOPICS}/{name}/partitions"


def partition(name: str, index: int) -> str:
    return f"{TOPICS}/{name}/partitions/{index}"


def partition_state(name: str, index: int) -> str:
    return f"{TOPICS}/{name}/partitions/{index}/state"


def deletion(name: str) -> str:
    return f"{DELETED_TOPICS}/{name}"


def topic_config(name: str) -> str:
    return f"{CONFIG_TOPICS}/{name}"


def broker_config(entity: str) -> str:
    return f"{CONFIG_BROKERS}/{entity}"


def group_config(group_id: str) -> str:
    """The id of a group may have any character; those that a path cannot have are escaped."""
    return f"{CONFIG_GROUPS}/{quote(group_id, safe='')}"


def group_of_config(node: str) -> str:
    return unquote(node)


def to_json(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


def from_json(data: bytes) -> Any:
    return json.loads(data)


def broker_value(host: str | None, port: int, rack: str | None, now_ms: int) -> bytes:
    value = {
        "version": 5,
        "host": host or "",
        "port": port,
        "jmx_port": -1,
        "timestamp": str(now_ms),
        "endpoints": [f"PLAINTEXT://{host or ''}:{port}"],
        "listener_security_protocol_map": {"PLAINTEXT": "PLAINTEXT"},
        "features": {},
    }
    if rack:
        value["rack"] = rack
    return to_json(value)


def controller_value(broker_id: int, now_ms: int) -> bytes:
    return to_json(
        {
            "version": 2,
            "brokerid": broker_id,
            "timestamp": str(now_ms),
            "kraftControllerEpoch": -1,
        }
    )


def topic_value(
    topic_id: str,
    assignment: list[list[int]],
    adding: dict[int, list[int]] | None = None,
    removing: dict[int, list[int]] | None = None,
) -> bytes:
    return to_json(
        {
            "version": 3,
            "topic_id": topic_id,
            "partitions": {str(i): replicas for i, replicas in enumerate(assignment)},
            "adding_replicas": {str(i): replicas for i, replicas in (adding or {}).items()},
            "removing_replicas": {str(i): replicas for i, replicas in (removing or {}).items()},
        }
    )


def state_value(leader: int, leader_epoch: int, isr: list[int], controller_epoch: int) -> bytes:
    return to_json(
        {
            "version": 1,
            "leader": leader,
            "leader_epoch": leader_epoch,
            "controller_epoch": controller_epoch,
            "isr": isr,
        }
    )


def config_value(config: dict[str, str]) -> bytes:
    return to_json({"version": 1, "config": config})
