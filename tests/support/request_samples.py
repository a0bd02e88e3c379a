"""A valid request of every API, in every version that the registry announces."""

from support.raw_client import batch_of

from tidelog.broker.broker import Broker  # noqa: F401  (fills the registry)
from tidelog.broker.registry import REGISTRY
from tidelog.wire.messages import (
    alter_configs,
    alter_partition,
    alter_replica_log_dirs,
    consumer_group_describe,
    consumer_group_heartbeat,
    controlled_shutdown,
    create_acls,
    create_partitions,
    create_topics,
    delete_acls,
    delete_groups,
    delete_records,
    delete_topics,
    describe_acls,
    describe_configs,
    describe_groups,
    describe_log_dirs,
    describe_producers,
    describe_topic_partitions,
    elect_leaders,
    fetch,
    heartbeat,
    incremental_alter_configs,
    join_group,
    leader_and_isr,
    leave_group,
    list_groups,
    list_offsets,
    metadata,
    offset_commit,
    offset_delete,
    offset_fetch,
    offset_for_leader_epoch,
    produce,
    stop_replica,
    sync_group,
    update_metadata,
)
from tidelog.wire.messages.alter_partition_reassignments import AlterPartitionReassignmentsRequest
from tidelog.wire.messages.api_versions import ApiVersionsRequest
from tidelog.wire.messages.describe_cluster import DescribeClusterRequest
from tidelog.wire.messages.explain_group import ExplainGroupRequest
from tidelog.wire.messages.find_coordinator import FindCoordinatorRequest
from tidelog.wire.messages.init_producer_id import InitProducerIdRequest
from tidelog.wire.messages.list_config_resources import ListConfigResourcesRequest
from tidelog.wire.messages.list_partition_reassignments import ListPartitionReassignmentsRequest

TOPIC = "everything"
TOPIC_ID = b""  # set once the topic exists


def new_topic(name, validate=False):
    topic = create_topics.CreatableTopic(
        name=name, num_partitions=1, replication_factor=1, assignments=[], configs=[]
    )
    return create_topics.CreateTopicsRequest(topics=[topic], validate_only=validate)


def named(version, first_id, field="name"):
    return {"topic_id": TOPIC_ID} if version >= first_id else {field: TOPIC}


def sample_produce(v):
    data = produce.PartitionProduceData(index=1, records=batch_of(b"x"))
    topic = produce.TopicProduceData(partition_data=[data], **named(v, 13))
    return produce.ProduceRequest(acks=1, timeout_ms=1000, topic_data=[topic])


def sample_fetch(v):
    row = fetch.FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1000)
    topic = fetch.FetchTopic(partitions=[row], **named(v, 13, "topic"))
    return fetch.FetchRequest(max_wait_ms=0, min_bytes=0, topics=[topic])


def sample_list_offsets(_):
    row = list_offsets.ListOffsetsPartition(partition_index=0, timestamp=-1)
    topic = list_offsets.ListOffsetsTopic(name=TOPIC, partitions=[row])
    return list_offsets.ListOffsetsRequest(replica_id=-1, isolation_level=0, topics=[topic])


def sample_metadata(_):
    return metadata.MetadataRequest(topics=[metadata.MetadataRequestTopic(name=TOPIC)])


def sample_delete_records(_):
    row = delete_records.DeleteRecordsPartition(partition_index=0, offset=1)
    topic = delete_records.DeleteRecordsTopic(name=TOPIC, partitions=[row])
    return delete_records.DeleteRecordsRequest(topics=[topic], timeout_ms=1000)


def sample_epoch(_):
    row = offset_for_leader_epoch.OffsetForLeaderPartition(partition=0, leader_epoch=0)
    topic = offset_for_leader_epoch.OffsetForLeaderTopic(topic=TOPIC, partitions=[row])
    return offset_for_leader_epoch.OffsetForLeaderEpochRequest(topics=[topic])


def sample_describe_configs(_):
    resource = describe_configs.DescribeConfigsResource(
        resource_type=2, resource_name=TOPIC, configuration_keys=None
    )
    return describe_configs.DescribeConfigsRequest(
        resources=[resource], include_synonyms=True, include_documentation=True
    )


def sample_alter_configs(_):
    row = alter_configs.AlterableConfig(name="retention.ms", value="1000000")
    resource = alter_configs.AlterConfigsResource(
        resource_type=2, resource_name=TOPIC, configs=[row]
    )
    return alter_configs.AlterConfigsRequest(resources=[resource], validate_only=False)


def sample_incremental(_):
    row = incremental_alter_configs.AlterableConfig(
        name="retention.ms", config_operation=0, value="2000000"
    )
    resource = incremental_alter_configs.AlterConfigsResource(
        resource_type=2, resource_name=TOPIC, configs=[row]
    )
    return incremental_alter_configs.IncrementalAlterConfigsRequest(
        resources=[resource], validate_only=False
    )


def sample_create_partitions(_):
    topic = create_partitions.CreatePartitionsTopic(name=TOPIC, count=3, assignments=None)
    return create_partitions.CreatePartitionsRequest(
        topics=[topic], timeout_ms=1000, validate_only=True
    )


def sample_delete_topics(v):
    if v >= 6:
        topics = [delete_topics.DeleteTopicState(name="not-there")]
        return delete_topics.DeleteTopicsRequest(topics=topics, timeout_ms=1000)
    return delete_topics.DeleteTopicsRequest(topic_names=["not-there"], timeout_ms=1000)


def sample_describe_producers(_):
    topic = describe_producers.TopicRequest(name=TOPIC, partition_indexes=[0])
    return describe_producers.DescribeProducersRequest(topics=[topic])


def sample_describe_topic_partitions(_):
    topic = describe_topic_partitions.TopicRequest(name=TOPIC)
    return describe_topic_partitions.DescribeTopicPartitionsRequest(topics=[topic])


def sample_join_group(v):
    protocol = join_group.JoinGroupRequestProtocol(name="range", metadata=b"")
    return join_group.JoinGroupRequest(
        group_id=f"joined-by-v{v}",
        session_timeout_ms=10_000,
        rebalance_timeout_ms=10_000,
        member_id="",
        protocol_type="consumer",
        protocols=[protocol],
    )


def sample_sync_group(_):
    return sync_group.SyncGroupRequest(
        group_id="nobody", generation_id=1, member_id="me", assignments=[]
    )


def sample_leave_group(_):
    member = leave_group.MemberIdentity(member_id="me")
    return leave_group.LeaveGroupRequest(group_id="nobody", member_id="me", members=[member])


def sample_offset_commit(v):
    row = offset_commit.OffsetCommitRequestPartition(
        partition_index=0, committed_offset=1, committed_metadata="seen"
    )
    topic = offset_commit.OffsetCommitRequestTopic(partitions=[row], **named(v, 10))
    return offset_commit.OffsetCommitRequest(group_id="commits", member_id="", topics=[topic])


def sample_offset_fetch(v):
    if v < 8:
        topic = offset_fetch.OffsetFetchRequestTopic(name=TOPIC, partition_indexes=[0])
        return offset_fetch.OffsetFetchRequest(group_id="commits", topics=[topic])
    topic = offset_fetch.OffsetFetchRequestTopics(partition_indexes=[0], **named(v, 10))
    group = offset_fetch.OffsetFetchRequestGroup(group_id="commits", topics=[topic])
    return offset_fetch.OffsetFetchRequest(groups=[group])


def sample_offset_delete(_):
    row = offset_delete.OffsetDeleteRequestPartition(partition_index=0)
    topic = offset_delete.OffsetDeleteRequestTopic(name=TOPIC, partitions=[row])
    return offset_delete.OffsetDeleteRequest(group_id="commits", topics=[topic])


def sample_consumer_heartbeat(v):
    return consumer_group_heartbeat.ConsumerGroupHeartbeatRequest(
        group_id=f"consumers-v{v}",
        member_id="me",
        member_epoch=0,
        rebalance_timeout_ms=1000,
        subscribed_topic_names=[TOPIC],
        topic_partitions=[],
    )


ACL_FILTER = {
    "resource_type_filter": 1,
    "resource_name_filter": None,
    "principal_filter": None,
    "host_filter": None,
    "operation": 1,
    "permission_type": 1,
}

SAMPLES = {
    0: sample_produce,
    1: sample_fetch,
    2: sample_list_offsets,
    3: sample_metadata,
    8: sample_offset_commit,
    9: sample_offset_fetch,
    4: lambda _: leader_and_isr.LeaderAndIsrRequest(
        controller_id=1, controller_epoch=9, topic_states=[], live_leaders=[]
    ),
    5: lambda _: stop_replica.StopReplicaRequest(
        controller_id=1, controller_epoch=9, topic_states=[]
    ),
    6: lambda _: update_metadata.UpdateMetadataRequest(
        controller_id=1, controller_epoch=9, topic_states=[], live_brokers=[]
    ),
    7: lambda _: controlled_shutdown.ControlledShutdownRequest(broker_id=0),
    10: lambda _: FindCoordinatorRequest(key="group", coordinator_keys=["group"]),
    11: sample_join_group,
    12: lambda _: heartbeat.HeartbeatRequest(group_id="nobody", generation_id=1, member_id="me"),
    13: sample_leave_group,
    14: sample_sync_group,
    15: lambda _: describe_groups.DescribeGroupsRequest(groups=["commits"]),
    16: lambda _: list_groups.ListGroupsRequest(),
    18: lambda _: ApiVersionsRequest(client_software_name="raw", client_software_version="1.0"),
    19: lambda v: new_topic(f"created-by-v{v}"),
    20: sample_delete_topics,
    21: sample_delete_records,
    22: lambda _: InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=0),
    23: sample_epoch,
    29: lambda _: describe_acls.DescribeAclsRequest(**ACL_FILTER),
    30: lambda _: create_acls.CreateAclsRequest(creations=[]),
    31: lambda _: delete_acls.DeleteAclsRequest(filters=[]),
    32: sample_describe_configs,
    33: sample_alter_configs,
    34: lambda _: alter_replica_log_dirs.AlterReplicaLogDirsRequest(dirs=[]),
    35: lambda _: describe_log_dirs.DescribeLogDirsRequest(topics=None),
    37: sample_create_partitions,
    42: lambda _: delete_groups.DeleteGroupsRequest(groups_names=["nobody"]),
    43: lambda _: elect_leaders.ElectLeadersRequest(topic_partitions=None),
    44: sample_incremental,
    45: lambda _: AlterPartitionReassignmentsRequest(topics=[]),
    46: lambda _: ListPartitionReassignmentsRequest(),
    47: sample_offset_delete,
    56: lambda _: alter_partition.AlterPartitionRequest(broker_id=0, topics=[]),
    60: lambda _: DescribeClusterRequest(include_cluster_authorized_operations=False),
    61: sample_describe_producers,
    68: sample_consumer_heartbeat,
    69: lambda _: consumer_group_describe.ConsumerGroupDescribeRequest(group_ids=["consumers-v0"]),
    74: lambda _: ListConfigResourcesRequest(),
    75: sample_describe_topic_partitions,
    10015: lambda _: ExplainGroupRequest(group_id="commits"),
}


CASES = [
    (api.key, version)
    for api in REGISTRY.values()
    for version in range(api.versions[0], api.versions[1] + 1)
]
