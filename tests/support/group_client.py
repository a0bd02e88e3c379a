"""The requests of a group member on a raw connection, right or wrong on purpose."""

from support.raw_client import RawClient

from tidelog.errors import ErrorCode
from tidelog.wire.consumer_protocol import ConsumerProtocolSubscription, encode_consumer
from tidelog.wire.messages import (
    delete_groups,
    delete_records,
    delete_topics,
    describe_groups,
    explain_group,
    find_coordinator,
    heartbeat,
    join_group,
    leave_group,
    list_groups,
    offset_commit,
    offset_delete,
    offset_fetch,
    sync_group,
)
from tidelog.wire.messages.consumer_group_describe import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupDescribeResponse,
)
from tidelog.wire.messages.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)
from tidelog.wire.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchResponse,
)


class GroupClient(RawClient):
    """One connection; every request can be made wrong."""

    def find(self, group="g", version=4, key_type=0):
        request = find_coordinator.FindCoordinatorRequest(
            key=group, key_type=key_type, coordinator_keys=[group]
        )
        answer = self.call(request, find_coordinator.FindCoordinatorResponse, version)
        return answer.coordinators[0] if version >= 4 else answer

    def join_request(self, group, member_id="", **changes):
        topics = changes.pop("topics", ["t"])
        metadata = encode_consumer(ConsumerProtocolSubscription(topics=topics), 1)
        names = changes.pop("protocols", ["range"])
        values = {
            "session_timeout_ms": 60_000,
            "rebalance_timeout_ms": 60_000,
            "protocol_type": "consumer",
            "protocols": [
                join_group.JoinGroupRequestProtocol(name=name, metadata=metadata) for name in names
            ],
        }
        return join_group.JoinGroupRequest(
            group_id=group, member_id=member_id, **{**values, **changes}
        )

    def join(self, group, member_id="", version=9, **changes):
        request = self.join_request(group, member_id, **changes)
        answer = self.call(request, join_group.JoinGroupResponse, version)
        if answer.error_code == ErrorCode.MEMBER_ID_REQUIRED and not member_id:
            return self.join(group, answer.member_id, version, **changes)
        return answer

    def sync(self, group, joined, assignments=None, version=5, **changes):
        values = {"generation_id": joined.generation_id, "member_id": joined.member_id}
        rows = [
            sync_group.SyncGroupRequestAssignment(member_id=member_id, assignment=data)
            for member_id, data in (assignments or {}).items()
        ]
        request = sync_group.SyncGroupRequest(
            group_id=group, assignments=rows, **{**values, **changes}
        )
        return self.call(request, sync_group.SyncGroupResponse, version)

    def enter(self, group, **changes):
        """Join alone and sync: the answer to the join."""
        joined = self.join(group, **changes)
        assert joined.error_code == 0
        instance = {"group_instance_id": changes.get("group_instance_id")}
        assert self.sync(group, joined, {joined.member_id: b"all"}, **instance).error_code == 0
        return joined

    def heartbeat(self, group, joined, **changes):
        values = {"generation_id": joined.generation_id, "member_id": joined.member_id}
        request = heartbeat.HeartbeatRequest(group_id=group, **{**values, **changes})
        return self.call(request, heartbeat.HeartbeatResponse, 4).error_code

    def leave(self, group, *members):
        rows = [leave_group.MemberIdentity(**member) for member in members]
        request = leave_group.LeaveGroupRequest(group_id=group, members=rows)
        return self.call(request, leave_group.LeaveGroupResponse, 5)

    def commit(self, group, topic, offset, partition=0, metadata="", version=9, **changes):
        row = offset_commit.OffsetCommitRequestPartition(
            partition_index=partition, committed_offset=offset, committed_metadata=metadata
        )
        named = {"topic_id": topic} if version >= 10 else {"name": topic}
        rows = [offset_commit.OffsetCommitRequestTopic(partitions=[row], **named)]
        values = {"generation_id_or_member_epoch": -1, "member_id": "", "topics": rows}
        request = offset_commit.OffsetCommitRequest(group_id=group, **{**values, **changes})
        answer = self.call(request, offset_commit.OffsetCommitResponse, version)
        return answer.topics[0].partitions[0].error_code

    def committed(self, group, topic, partition=0):
        """The committed offset; -1 if there is none."""
        found = self.fetch_offset(group, topic, partition)
        assert found.error_code == 0, found
        return found.topics[0].partitions[0].committed_offset

    def fetch_offset(self, group, topic, partition=0):
        rows = [offset_fetch.OffsetFetchRequestTopics(name=topic, partition_indexes=[partition])]
        asked = offset_fetch.OffsetFetchRequestGroup(group_id=group, topics=rows)
        request = offset_fetch.OffsetFetchRequest(groups=[asked])
        return self.call(request, offset_fetch.OffsetFetchResponse, 9).groups[0]

    def describe(self, group, version=6):
        request = describe_groups.DescribeGroupsRequest(groups=[group])
        return self.call(request, describe_groups.DescribeGroupsResponse, version).groups[0]

    def list(self, version=5, **filters):
        request = list_groups.ListGroupsRequest(**filters)
        return self.call(request, list_groups.ListGroupsResponse, version).groups

    def delete(self, *groups):
        request = delete_groups.DeleteGroupsRequest(groups_names=list(groups))
        answer = self.call(request, delete_groups.DeleteGroupsResponse, 2)
        return [row.error_code for row in answer.results]

    def delete_offset(self, group, topic, partition=0):
        row = offset_delete.OffsetDeleteRequestPartition(partition_index=partition)
        topics = [offset_delete.OffsetDeleteRequestTopic(name=topic, partitions=[row])]
        request = offset_delete.OffsetDeleteRequest(group_id=group, topics=topics)
        answer = self.call(request, offset_delete.OffsetDeleteResponse, 0)
        return answer.error_code or answer.topics[0].partitions[0].error_code

    def delete_topic(self, name):
        row = delete_topics.DeleteTopicState(name=name)
        request = delete_topics.DeleteTopicsRequest(topics=[row], timeout_ms=10_000)
        answer = self.call(request, delete_topics.DeleteTopicsResponse, 6)
        assert answer.responses[0].error_code == 0

    def delete_records(self, topic, offset):
        row = delete_records.DeleteRecordsPartition(partition_index=0, offset=offset)
        rows = [delete_records.DeleteRecordsTopic(name=topic, partitions=[row])]
        request = delete_records.DeleteRecordsRequest(topics=rows, timeout_ms=10_000)
        answer = self.call(request, delete_records.DeleteRecordsResponse, 2)
        assert answer.topics[0].partitions[0].error_code == 0

    def explain(self, group):
        request = explain_group.ExplainGroupRequest(group_id=group)
        return self.call(request, explain_group.ExplainGroupResponse, 0)


class ConsumerGroupClient(GroupClient):
    """A connection that also speaks the new protocol."""

    def beat(self, group, member_id="me", epoch=0, version=1, **changes):
        self.send_beat(group, member_id, epoch, version, **changes)
        return self.receive(ConsumerGroupHeartbeatResponse, version)[1]

    def send_beat(self, group, member_id="me", epoch=0, version=1, **changes):
        values = {"member_id": member_id, "member_epoch": epoch}
        if epoch == 0:
            values |= {
                "rebalance_timeout_ms": 60_000,
                "subscribed_topic_names": ["clicks"],
                "topic_partitions": [],
            }
        request = ConsumerGroupHeartbeatRequest(group_id=group, **{**values, **changes})
        self.send(request, version)

    def describe_consumers(self, group, version=1):
        request = ConsumerGroupDescribeRequest(group_ids=[group])
        return self.call(request, ConsumerGroupDescribeResponse, version).groups[0]

    def may_fetch(self, group, member_id, epoch):
        asked = OffsetFetchRequestGroup(
            group_id=group, member_id=member_id, member_epoch=epoch, topics=None
        )
        request = OffsetFetchRequest(groups=[asked])
        return self.call(request, OffsetFetchResponse, 9).groups[0].error_code
