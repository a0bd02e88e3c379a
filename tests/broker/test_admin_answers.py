"""Answers of the admin APIs that were compared with those of a running Kafka 4.3."""

import pytest
from support.group_client import GroupClient
from support.raw_client import batch_of

from tidelog.errors import ErrorCode
from tidelog.testing import LocalBroker
from tidelog.wire.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    ReassignablePartition,
    ReassignableTopic,
)
from tidelog.wire.messages.consumer_group_describe import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupDescribeResponse,
)
from tidelog.wire.messages.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)
from tidelog.wire.messages.create_acls import AclCreation, CreateAclsRequest, CreateAclsResponse
from tidelog.wire.messages.delete_acls import (
    DeleteAclsFilter,
    DeleteAclsRequest,
    DeleteAclsResponse,
)
from tidelog.wire.messages.describe_acls import DescribeAclsRequest, DescribeAclsResponse
from tidelog.wire.messages.describe_cluster import DescribeClusterRequest, DescribeClusterResponse
from tidelog.wire.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResponse,
)
from tidelog.wire.messages.describe_groups import DescribeGroupsRequest, DescribeGroupsResponse
from tidelog.wire.messages.describe_topic_partitions import (
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsResponse,
    TopicRequest,
)
from tidelog.wire.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)
from tidelog.wire.messages.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse

NOT_ASKED, ON_TOPIC, ON_GROUP, ON_CLUSTER = -(2**31), 3576, 3400, 8096
STATIC, DEFAULT = 4, 5


@pytest.fixture
def client(broker):
    with GroupClient(broker.port) as connected:
        yield connected


@pytest.mark.parametrize("version", [8, 9, 10, 11, 12, 13])
def test_authorized_operations_in_metadata(client, topic, version):
    for asked in (False, True):
        topics = [MetadataRequestTopic(name=name) for name in (topic, "no-such-topic")]
        if version >= 12:
            topics.append(MetadataRequestTopic(name=None, topic_id=bytes(range(16))))
        cluster = {"include_cluster_authorized_operations": asked} if version <= 10 else {}
        request = MetadataRequest(
            topics=topics,
            allow_auto_topic_creation=False,
            include_topic_authorized_operations=asked,
            **cluster,
        )
        answer = client.call(request, MetadataResponse, version)
        found = [row.topic_authorized_operations for row in answer.topics]
        assert found[:2] == [ON_TOPIC if asked else NOT_ASKED] * 2
        assert found[2:] in ([], [NOT_ASKED])  # nobody knows the topic with this id
        on_cluster = ON_CLUSTER if asked and version <= 10 else NOT_ASKED
        assert answer.cluster_authorized_operations == on_cluster


def test_authorized_operations_of_cluster_groups_and_topics(client, topic):
    for asked in (False, True):
        request = DescribeClusterRequest(include_cluster_authorized_operations=asked)
        answer = client.call(request, DescribeClusterResponse, 2)
        assert answer.cluster_authorized_operations == (ON_CLUSTER if asked else NOT_ASKED)
    client.find(topic)
    assert client.commit(topic, topic, 5) == 0
    for version, expected in ((5, [ON_GROUP, ON_GROUP]), (6, [ON_GROUP, NOT_ASKED])):
        for asked in (False, True):
            request = DescribeGroupsRequest(
                groups=[topic, "no-such-group"], include_authorized_operations=asked
            )
            groups = client.call(request, DescribeGroupsResponse, version).groups
            found = [group.authorized_operations for group in groups]
            assert found == (expected if asked else [NOT_ASKED] * 2)
    request = ConsumerGroupDescribeRequest(group_ids=[topic], include_authorized_operations=True)
    answer = client.call(request, ConsumerGroupDescribeResponse, 1)
    assert answer.groups[0].authorized_operations == NOT_ASKED  # it is a classic group
    member = ConsumerGroupHeartbeatRequest(
        group_id="modern",
        member_id="me",
        member_epoch=0,
        rebalance_timeout_ms=60_000,
        subscribed_topic_names=[topic],
        topic_partitions=[],
    )
    assert client.call(member, ConsumerGroupHeartbeatResponse, 1).error_code == 0
    for asked in (False, True):
        request = ConsumerGroupDescribeRequest(
            group_ids=["modern"], include_authorized_operations=asked
        )
        answer = client.call(request, ConsumerGroupDescribeResponse, 1)
        assert answer.groups[0].authorized_operations == (ON_GROUP if asked else NOT_ASKED)
    request = DescribeTopicPartitionsRequest(
        topics=[TopicRequest(name=name) for name in (topic, "no-such-topic")],
        response_partition_limit=10,
    )
    answer = client.call(request, DescribeTopicPartitionsResponse, 0)
    assert [row.topic_authorized_operations for row in answer.topics] == [ON_TOPIC] * 2


@pytest.mark.parametrize("version", [1, 2, 3])
def test_without_an_authorizer_acls_are_disabled(client, version):
    rule = {"operation": 3, "permission_type": 3}
    row = AclCreation(resource_type=2, resource_name="t", principal="User:a", host="*", **rule)
    created = client.call(CreateAclsRequest(creations=[row, row]), CreateAclsResponse, version)
    filters = {
        "resource_type_filter": 2,
        "resource_name_filter": None,
        "principal_filter": None,
        "host_filter": None,
        **rule,
    }
    deleted = client.call(
        DeleteAclsRequest(filters=[DeleteAclsFilter(**filters)]), DeleteAclsResponse, version
    )
    found = client.call(DescribeAclsRequest(**filters), DescribeAclsResponse, version)
    assert (len(created.results), len(deleted.filter_results)) == (2, 1)
    for answer in (*created.results, *deleted.filter_results, found):
        assert answer.error_code == ErrorCode.SECURITY_DISABLED
        assert "no authorizer" in answer.error_message


def reassign(client, topic, replicas, index=0):
    row = ReassignablePartition(partition_index=index, replicas=replicas)
    request = AlterPartitionReassignmentsRequest(
        timeout_ms=10_000, topics=[ReassignableTopic(name=topic, partitions=[row])]
    )
    answer = client.call(request, AlterPartitionReassignmentsResponse, 0)
    assert answer.error_code == 0
    return answer.responses[0].partitions[0].error_code


def test_reassignments_on_a_lone_broker(client, topic):
    assert reassign(client, topic, [0]) == 0  # so it is already
    assert reassign(client, topic, None) == ErrorCode.NO_REASSIGNMENT_IN_PROGRESS
    for wrong in ([], [0, 0], [0, 1], [7], [-1]):
        assert reassign(client, topic, wrong) == ErrorCode.INVALID_REPLICA_ASSIGNMENT
    unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert reassign(client, "no-such-topic", [0]) == unknown
    assert reassign(client, "no-such-topic", None) == unknown
    assert reassign(client, topic, [0], index=9) == unknown
    assert reassign(client, topic, [0], index=-1) == unknown


# -- settings -------------------------------------------------------------------------


def described(client, kind, name, *keys):
    """Value, source and synonyms of settings."""
    resource = DescribeConfigsResource(
        resource_type=kind, resource_name=name, configuration_keys=list(keys)
    )
    request = DescribeConfigsRequest(resources=[resource], include_synonyms=True)
    (result,) = client.call(request, DescribeConfigsResponse, 4).results
    return {
        row.name: (
            row.value,
            row.config_source,
            [(synonym.name, synonym.value, synonym.source) for synonym in row.synonyms],
        )
        for row in result.configs
    }


def set_config(client, kind, name, key, value):
    row = AlterableConfig(name=key, config_operation=0, value=value)
    resource = AlterConfigsResource(resource_type=kind, resource_name=name, configs=[row])
    request = IncrementalAlterConfigsRequest(resources=[resource], validate_only=False)
    answer = client.call(request, IncrementalAlterConfigsResponse, 1).responses[0]
    assert answer.error_code == 0, answer.error_message


def test_synonyms_of_times_that_have_coarser_settings():
    """What is coarser is a synonym only behind the setting in milliseconds itself."""
    topic, broker = 2, 4
    with (
        LocalBroker({"log.retention.hours": 72}) as running,
        GroupClient(running.port) as client,
    ):
        client.create_topic("t")
        found = described(client, topic, "t", "retention.ms", "segment.ms", "flush.ms")
        assert found["retention.ms"] == ("259200000", STATIC, [])
        assert found["segment.ms"] == ("604800000", DEFAULT, [])
        assert found["flush.ms"][1:] == (DEFAULT, [])
        set_config(client, topic, "t", "retention.ms", "5000")
        assert described(client, topic, "t", "retention.ms") == {
            "retention.ms": ("5000", 1, [("retention.ms", "5000", 1)])
        }
        set_config(client, broker, "0", "log.retention.ms", "6000")
        set_config(client, broker, "", "log.roll.ms", "8000")
        below = [
            ("log.retention.ms", "6000", 2),
            ("log.retention.hours", "72", STATIC),
            ("log.retention.hours", "168", DEFAULT),
        ]
        rolls = [("log.roll.ms", "8000", 3), ("log.roll.hours", "168", DEFAULT)]
        assert described(client, topic, "t", "retention.ms", "segment.ms") == {
            "retention.ms": ("5000", 1, [("retention.ms", "5000", 1), *below]),
            "segment.ms": ("8000", 3, rolls),
        }
        assert described(client, broker, "0", "log.retention.ms", "log.retention.hours") == {
            "log.retention.ms": ("6000", 2, below),
            "log.retention.hours": ("72", STATIC, below[1:]),
        }


def test_no_names_mean_all_settings(client, topic):
    assert len(described(client, 2, topic)) > 30


def test_records_of_a_topic_without_a_cleanup_policy_can_be_deleted(client):
    client.create_topic("kept", cleanup_policy="")
    client.produce("kept", batch_of(b"a", b"b"))
    client.delete_records("kept", 1)
    assert client.read_values("kept", offset=1) == [b"b"]
