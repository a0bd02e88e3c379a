"""Kafka's error table, and the one exception that carries a row of it.

A handler raises :class:`ApiError`; ``broker/dispatch.py`` is the only place that turns an
exception into a code on the wire.  The message says what the user should do next.
"""

from __future__ import annotations

from enum import IntEnum


class ErrorCode(IntEnum):
    """Every error code of the protocol, by Kafka's own names."""

    UNKNOWN_SERVER_ERROR = -1
    NONE = 0
    OFFSET_OUT_OF_RANGE = 1
    CORRUPT_MESSAGE = 2
    UNKNOWN_TOPIC_OR_PARTITION = 3
    INVALID_FETCH_SIZE = 4
    LEADER_NOT_AVAILABLE = 5
    NOT_LEADER_OR_FOLLOWER = 6
    REQUEST_TIMED_OUT = 7
    BROKER_NOT_AVAILABLE = 8
    REPLICA_NOT_AVAILABLE = 9
    MESSAGE_TOO_LARGE = 10
    STALE_CONTROLLER_EPOCH = 11
    OFFSET_METADATA_TOO_LARGE = 12
    NETWORK_EXCEPTION = 13
    COORDINATOR_LOAD_IN_PROGRESS = 14
    COORDINATOR_NOT_AVAILABLE = 15
    NOT_COORDINATOR = 16
    INVALID_TOPIC_EXCEPTION = 17
    RECORD_LIST_TOO_LARGE = 18
    NOT_ENOUGH_REPLICAS = 19
    NOT_ENOUGH_REPLICAS_AFTER_APPEND = 20
    INVALID_REQUIRED_ACKS = 21
    ILLEGAL_GENERATION = 22
    INCONSISTENT_GROUP_PROTOCOL = 23
    INVALID_GROUP_ID = 24
    UNKNOWN_MEMBER_ID = 25
    INVALID_SESSION_TIMEOUT = 26
    REBALANCE_IN_PROGRESS = 27
    INVALID_COMMIT_OFFSET_SIZE = 28
    TOPIC_AUTHORIZATION_FAILED = 29
    GROUP_AUTHORIZATION_FAILED = 30
    CLUSTER_AUTHORIZATION_FAILED = 31
    INVALID_TIMESTAMP = 32
    UNSUPPORTED_SASL_MECHANISM = 33
    ILLEGAL_SASL_STATE = 34
    UNSUPPORTED_VERSION = 35
    TOPIC_ALREADY_EXISTS = 36
    INVALID_PARTITIONS = 37
    INVALID_REPLICATION_FACTOR = 38
    INVALID_REPLICA_ASSIGNMENT = 39
    INVALID_CONFIG = 40
    NOT_CONTROLLER = 41
    INVALID_REQUEST = 42
    UNSUPPORTED_FOR_MESSAGE_FORMAT = 43
    POLICY_VIOLATION = 44
    OUT_OF_ORDER_SEQUENCE_NUMBER = 45
    DUPLICATE_SEQUENCE_NUMBER = 46
    INVALID_PRODUCER_EPOCH = 47
    INVALID_TXN_STATE = 48
    INVALID_PRODUCER_ID_MAPPING = 49
    INVALID_TRANSACTION_TIMEOUT = 50
    CONCURRENT_TRANSACTIONS = 51
    TRANSACTION_COORDINATOR_FENCED = 52
    TRANSACTIONAL_ID_AUTHORIZATION_FAILED = 53
    SECURITY_DISABLED = 54
    OPERATION_NOT_ATTEMPTED = 55
    KAFKA_STORAGE_ERROR = 56
    LOG_DIR_NOT_FOUND = 57
    SASL_AUTHENTICATION_FAILED = 58
    UNKNOWN_PRODUCER_ID = 59
    REASSIGNMENT_IN_PROGRESS = 60
    DELEGATION_TOKEN_AUTH_DISABLED = 61
    DELEGATION_TOKEN_NOT_FOUND = 62
    DELEGATION_TOKEN_OWNER_MISMATCH = 63
    DELEGATION_TOKEN_REQUEST_NOT_ALLOWED = 64
    DELEGATION_TOKEN_AUTHORIZATION_FAILED = 65
    DELEGATION_TOKEN_EXPIRED = 66
    INVALID_PRINCIPAL_TYPE = 67
    NON_EMPTY_GROUP = 68
    GROUP_ID_NOT_FOUND = 69
    FETCH_SESSION_ID_NOT_FOUND = 70
    INVALID_FETCH_SESSION_EPOCH = 71
    LISTENER_NOT_FOUND = 72
    TOPIC_DELETION_DISABLED = 73
    FENCED_LEADER_EPOCH = 74
    UNKNOWN_LEADER_EPOCH = 75
    UNSUPPORTED_COMPRESSION_TYPE = 76
    STALE_BROKER_EPOCH = 77
    OFFSET_NOT_AVAILABLE = 78
    MEMBER_ID_REQUIRED = 79
    PREFERRED_LEADER_NOT_AVAILABLE = 80
    GROUP_MAX_SIZE_REACHED = 81
    FENCED_INSTANCE_ID = 82
    ELIGIBLE_LEADERS_NOT_AVAILABLE = 83
    ELECTION_NOT_NEEDED = 84
    NO_REASSIGNMENT_IN_PROGRESS = 85
    GROUP_SUBSCRIBED_TO_TOPIC = 86
    INVALID_RECORD = 87
    UNSTABLE_OFFSET_COMMIT = 88
    THROTTLING_QUOTA_EXCEEDED = 89
    PRODUCER_FENCED = 90
    RESOURCE_NOT_FOUND = 91
    DUPLICATE_RESOURCE = 92
    UNACCEPTABLE_CREDENTIAL = 93
    INCONSISTENT_VOTER_SET = 94
    INVALID_UPDATE_VERSION = 95
    FEATURE_UPDATE_FAILED = 96
    PRINCIPAL_DESERIALIZATION_FAILURE = 97
    SNAPSHOT_NOT_FOUND = 98
    POSITION_OUT_OF_RANGE = 99
    UNKNOWN_TOPIC_ID = 100
    DUPLICATE_BROKER_REGISTRATION = 101
    BROKER_ID_NOT_REGISTERED = 102
    INCONSISTENT_TOPIC_ID = 103
    INCONSISTENT_CLUSTER_ID = 104
    TRANSACTIONAL_ID_NOT_FOUND = 105
    FETCH_SESSION_TOPIC_ID_ERROR = 106
    INELIGIBLE_REPLICA = 107
    NEW_LEADER_ELECTED = 108
    OFFSET_MOVED_TO_TIERED_STORAGE = 109
    FENCED_MEMBER_EPOCH = 110
    UNRELEASED_INSTANCE_ID = 111
    UNSUPPORTED_ASSIGNOR = 112
    STALE_MEMBER_EPOCH = 113
    MISMATCHED_ENDPOINT_TYPE = 114
    UNSUPPORTED_ENDPOINT_TYPE = 115
    UNKNOWN_CONTROLLER_ID = 116
    UNKNOWN_SUBSCRIPTION_ID = 117
    TELEMETRY_TOO_LARGE = 118
    INVALID_REGISTRATION = 119
    TRANSACTION_ABORTABLE = 120
    INVALID_RECORD_STATE = 121
    SHARE_SESSION_NOT_FOUND = 122
    INVALID_SHARE_SESSION_EPOCH = 123
    FENCED_STATE_EPOCH = 124
    INVALID_VOTER_KEY = 125
    DUPLICATE_VOTER = 126
    VOTER_NOT_FOUND = 127
    INVALID_REGULAR_EXPRESSION = 128
    REBOOTSTRAP_REQUIRED = 129
    STREAMS_INVALID_TOPOLOGY = 130
    STREAMS_INVALID_TOPOLOGY_EPOCH = 131
    STREAMS_TOPOLOGY_FENCED = 132
    SHARE_SESSION_LIMIT_REACHED = 133


# A client may send the same request again and hope; every other error is final.
RETRIABLE = frozenset(
    ErrorCode(code)
    for code in (
        2,
        3,
        5,
        6,
        7,
        9,
        13,
        14,
        15,
        16,
        19,
        20,
        41,
        51,
        56,
        70,
        71,
        72,
        74,
        75,
        78,
        80,
        83,
        84,
        88,
        89,
        100,
        103,
        106,
        122,
        123,
        133,
    )
)

_ADVICE = {
    ErrorCode.UNKNOWN_SERVER_ERROR: "look in the broker's log for the cause",
    ErrorCode.OFFSET_OUT_OF_RANGE: "read from an offset between the log start and the end",
    ErrorCode.CORRUPT_MESSAGE: "send the batch again; if it repeats, the network or the client damages data",
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: "create the topic, or check its name and partition number",
    ErrorCode.LEADER_NOT_AVAILABLE: "wait for a leader election and try again",
    ErrorCode.NOT_LEADER_OR_FOLLOWER: "refresh the metadata and ask the leader",
    ErrorCode.REQUEST_TIMED_OUT: "try again; the broker did not finish in time",
    ErrorCode.MESSAGE_TOO_LARGE: "send smaller batches or raise max.message.bytes on the topic",
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS: "try again in a moment",
    ErrorCode.COORDINATOR_NOT_AVAILABLE: "try again in a moment",
    ErrorCode.NOT_COORDINATOR: "find the coordinator again",
    ErrorCode.INVALID_TOPIC_EXCEPTION: "use 1 to 249 letters, digits, '.', '_' or '-', and not '.' or '..'",
    ErrorCode.RECORD_LIST_TOO_LARGE: "send smaller batches or raise segment.bytes on the topic",
    ErrorCode.NOT_ENOUGH_REPLICAS: "wait until more replicas are in sync, or lower min.insync.replicas",
    ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND: "wait until more replicas are in sync; the records may have been written",
    ErrorCode.INVALID_REQUIRED_ACKS: "use acks 0, 1 or all",
    ErrorCode.UNSUPPORTED_VERSION: "use a version that ApiVersions announces",
    ErrorCode.TOPIC_ALREADY_EXISTS: "use the topic that is there, or another name",
    ErrorCode.INVALID_PARTITIONS: "ask for at least one partition, and never for fewer than there are",
    ErrorCode.INVALID_REPLICATION_FACTOR: "use at most as many replicas as there are brokers",
    ErrorCode.INVALID_REPLICA_ASSIGNMENT: "name existing brokers, the same number for every partition, none twice",
    ErrorCode.INVALID_CONFIG: "see `tidelog configs describe` for the valid names and values",
    ErrorCode.INVALID_REQUEST: "check the request; the message says what is wrong",
    ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT: "use a client that sends record batches of magic 2 (Kafka 0.11 or newer)",
    ErrorCode.POLICY_VIOLATION: "check the topic against the cluster's policy",
    ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER: "the producer lost a batch; it must start again with a new producer id",
    ErrorCode.DUPLICATE_SEQUENCE_NUMBER: "nothing: the records are already in the log",
    ErrorCode.INVALID_PRODUCER_EPOCH: "another producer took over; start again with a new producer id",
    ErrorCode.KAFKA_STORAGE_ERROR: "look at the disk: it is full, read-only or failing",
    ErrorCode.UNKNOWN_PRODUCER_ID: "the producer's history has expired; it starts again with a new producer id",
    ErrorCode.FETCH_SESSION_ID_NOT_FOUND: "take the newest session epoch, or start a full fetch",
    ErrorCode.INVALID_FETCH_SESSION_EPOCH: "start a new fetch session",
    ErrorCode.FENCED_LEADER_EPOCH: "refresh the metadata",
    ErrorCode.UNKNOWN_LEADER_EPOCH: "refresh the metadata",
    ErrorCode.UNSUPPORTED_COMPRESSION_TYPE: "use another codec, or a newer client",
    ErrorCode.INVALID_RECORD: "the batch breaks a rule of the log; the message says which",
    ErrorCode.THROTTLING_QUOTA_EXCEEDED: "wait: the broker sheds load",
    ErrorCode.UNKNOWN_TOPIC_ID: "refresh the metadata; the topic was deleted or created again",
    ErrorCode.INCONSISTENT_TOPIC_ID: "start a full fetch; topic ids and names may not be mixed",
    ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR: "wait for the broker to catch up and try again",
}


class SettingError(ValueError):
    """A setting that cannot be used; the message says what to do."""


_MAX_MESSAGE = 1000  # a message may quote what the client sent; an answer has room for 32 KiB


class ApiError(Exception):
    """An error with a code that a Kafka client understands."""

    def __init__(self, code: ErrorCode, message: str | None = None) -> None:
        self.code = code
        self.message = message or describe(code)
        if len(self.message) > _MAX_MESSAGE:
            self.message = self.message[:_MAX_MESSAGE] + "..."
        super().__init__(self.message)

    def __reduce__(self) -> tuple[object, ...]:
        return ApiError, (self.code, self.message)  # from one process to another


def describe(code: int) -> str:
    """The name of a code and what to do about it."""
    try:
        error = ErrorCode(code)
    except ValueError:
        return f"error code {code}, which this version of tidelog does not know"
    advice = _ADVICE.get(error)
    return f"{error.name}: {advice}" if advice else error.name
