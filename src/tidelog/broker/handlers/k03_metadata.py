"""Metadata: brokers, topics, partitions, and which broker leads.

Versions: 1 controller, null for all topics (an empty list in v0); 2 cluster id;
4 auto-creation is the client's choice; 5 offline replicas; 7 leader epochs;
8 authorized operations; 9 flexible; 10 topic ids; 12 look-up by id; 13 top-level error.

Clients ask the same again and again, so answers are kept as bytes until the cluster
changes.  An unknown topic is created if the client and ``auto.create.topics.enable``
allow it, and is there when the answer leaves.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any

from tidelog.broker import authorized_operations
from tidelog.broker.failures import code_of
from tidelog.broker.registry import api
from tidelog.broker.request import Request
from tidelog.errors import ApiError, ErrorCode
from tidelog.metadata import INTERNAL_TOPICS, OFFSETS_TOPIC, TopicInfo
from tidelog.new_topic import NewTopic
from tidelog.topic_partition import check_name
from tidelog.wire.messages.metadata import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from tidelog.wire.schema import ZERO_UUID

if TYPE_CHECKING:
    from tidelog.broker.broker import Broker

_FIRST_NULL_FOR_ALL = 1
_FIRST_BY_ID = 12


@api(MetadataRequest, versions=(0, 13), needs="DESCRIBE TOPIC", cached=True)
def metadata(
    broker: Broker, message: MetadataRequest, request: Request
) -> MetadataResponse | Coroutine[Any, Any, MetadataResponse]:
    """Describe brokers, topics and leaders."""
    known = broker.metadata.topics
    wanted = _distinct(message.topics)
    if wanted is None or (not wanted and request.version < _FIRST_NULL_FOR_ALL):
        topics = [_describe(topic, broker) for topic in known.values()]
        return _answer(broker, request, message, topics)
    if message.allow_auto_topic_creation and broker.settings["auto.create.topics.enable"]:
        missing = {row.name for row in wanted if row.name is not None and row.name not in known}
        if missing:
            return _create(broker, request, message, wanted, sorted(missing))
    return _answer(broker, request, message, [_look_up(broker, request, row) for row in wanted])


def _distinct(rows: list[MetadataRequestTopic] | None) -> list[MetadataRequestTopic] | None:
    """Each topic once, however often it is named: an answer is much longer than a name."""
    if rows is None or len(rows) < 2:
        return rows
    return list({(row.name, row.topic_id): row for row in rows}.values())


async def _create(
    broker: Broker,
    request: Request,
    message: MetadataRequest,
    wanted: list[MetadataRequestTopic],
    missing: list[str],
) -> MetadataResponse:
    """Make the topics that are not there; what cannot be made is answered with its error."""
    errors: dict[str | None, ErrorCode] = {}
    for name in missing:
        try:
            if name == OFFSETS_TOPIC:
                await broker.groups.create_topic()  # with other settings than the usual
            elif name not in INTERNAL_TOPICS:
                await broker.controller.create_topic(NewTopic(name))
        except Exception as error:
            code, _ = code_of(error, f"the creation of topic {name}")
            late = code == ErrorCode.REQUEST_TIMED_OUT  # clients ask again for this one:
            errors[name] = ErrorCode.LEADER_NOT_AVAILABLE if late else code
        await asyncio.sleep(0)  # others have their turn between two topics
    topics = []
    for row in wanted:
        topic = _look_up(broker, request, row)
        if topic.error_code and row.name in errors:
            topic.error_code = errors[row.name]
        topics.append(topic)
    return _answer(broker, request, message, topics)


def _answer(
    broker: Broker, request: Request, message: MetadataRequest, topics: list[MetadataResponseTopic]
) -> MetadataResponse:
    cluster = broker.metadata
    if message.include_topic_authorized_operations:
        for topic in topics:
            if topic.name is not None:
                topic.topic_authorized_operations = authorized_operations.on_topic()
    brokers = []
    for info in cluster.brokers.values():
        host, port = broker.address_of(info, request.connection)
        brokers.append(
            MetadataResponseBroker(node_id=info.broker_id, host=host, port=port, rack=info.rack)
        )
    return MetadataResponse(
        brokers=brokers,
        cluster_id=cluster.cluster_id,
        controller_id=cluster.controller_id,
        topics=topics,
        cluster_authorized_operations=authorized_operations.on_cluster(
            message.include_cluster_authorized_operations
        ),
    )


def _look_up(broker: Broker, request: Request, row: MetadataRequestTopic) -> MetadataResponseTopic:
    if request.version < _FIRST_BY_ID and (row.name is None or row.topic_id != ZERO_UUID):
        # v10 and v11 have the fields already, but their answers cannot leave the name out.
        return _missing(row.name or "", row.topic_id, ErrorCode.INVALID_REQUEST)
    if row.name is None or row.topic_id != ZERO_UUID:
        found = broker.metadata.topic_by_id(row.topic_id)
        if found is None:
            return _missing(None, row.topic_id, ErrorCode.UNKNOWN_TOPIC_ID)
        return _describe(found, broker)
    found = broker.metadata.topics.get(row.name)
    if found is not None:
        return _describe(found, broker)
    try:
        check_name(row.name)
    except ApiError as error:
        return _missing(row.name, ZERO_UUID, error.code)
    return _missing(row.name, ZERO_UUID, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)


def _missing(name: str | None, topic_id: bytes, code: ErrorCode) -> MetadataResponseTopic:
    return MetadataResponseTopic(error_code=code, name=name, topic_id=topic_id, partitions=[])


def _describe(topic: TopicInfo, broker: Broker) -> MetadataResponseTopic:
    live = broker.metadata.brokers
    return MetadataResponseTopic(
        error_code=0,
        name=topic.name,
        topic_id=topic.topic_id,
        is_internal=topic.internal,
        partitions=[
            MetadataResponsePartition(
                error_code=0 if info.leader in live else ErrorCode.LEADER_NOT_AVAILABLE,
                partition_index=index,
                leader_id=info.leader,
                leader_epoch=info.leader_epoch,
                replica_nodes=list(info.replicas),
                isr_nodes=list(info.isr),
                offline_replicas=[b for b in info.replicas if b not in live],
            )
            for index, info in enumerate(topic.partitions)
        ],
    )
