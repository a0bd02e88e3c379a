"""ApiVersions: API key 18."""

from __future__ import annotations

from tidelog.wire.schema import Bool, Int16, Int32, Int64, Message, String, Struct, field


class ApiVersionsRequest(Message, key=18, versions=(0, 4), flexible=3):
    client_software_name: String = field(default="", since=3)
    client_software_version: String = field(default="", since=3)


class ApiVersion(Struct):
    api_key: Int16
    min_version: Int16
    max_version: Int16


class SupportedFeatureKey(Struct):
    name: String
    min_version: Int16
    max_version: Int16


class FinalizedFeatureKey(Struct):
    name: String
    max_version_level: Int16
    min_version_level: Int16


class ApiVersionsResponse(Message, key=18, versions=(0, 4), flexible=3):
    error_code: Int16
    api_keys: list[ApiVersion]
    throttle_time_ms: Int32 = field(default=0, since=1)
    supported_features: list[SupportedFeatureKey] = field(default=(), since=3, tag=0)
    finalized_features_epoch: Int64 = field(default=-1, since=3, tag=1)
    finalized_features: list[FinalizedFeatureKey] = field(default=(), since=3, tag=2)
    zk_migration_ready: Bool = field(default=False, since=3, tag=3)
