"""DescribeCluster: API key 60."""

from __future__ import annotations

from tidelog.wire.schema import Bool, Int8, Int16, Int32, Message, String, Struct, field


class DescribeClusterRequest(Message, key=60, versions=(0, 2), flexible=0):
    include_cluster_authorized_operations: Bool
    endpoint_type: Int8 = field(default=1, since=1)
    include_fenced_brokers: Bool = field(default=False, since=2)


class DescribeClusterBroker(Struct):
    broker_id: Int32
    host: String
    port: Int32
    rack: String | None = None
    is_fenced: Bool = field(default=False, since=2)


class DescribeClusterResponse(Message, key=60, versions=(0, 2), flexible=0):
    throttle_time_ms: Int32 = 0
    error_code: Int16
    error_message: String | None = None
    endpoint_type: Int8 = field(default=1, since=1)
    cluster_id: String
    controller_id: Int32 = -1
    brokers: list[DescribeClusterBroker]
    cluster_authorized_operations: Int32 = -2147483648
