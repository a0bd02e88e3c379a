"""Whatever a handler raises becomes the message's own answer, with the code."""

import asyncio
from dataclasses import replace
from typing import Any

import pytest
from support.raw_client import RawClient, batch_of
from support.request_samples import ACL_FILTER, SAMPLES

from tidelog.broker.broker import Broker
from tidelog.broker.registry import HOT, REGISTRY
from tidelog.errors import ApiError, ErrorCode
from tidelog.keeper.keeper import ConnectionLost
from tidelog.wire.messages import (
    alter_replica_log_dirs,
    create_acls,
    delete_acls,
    elect_leaders,
    produce,
)
from tidelog.wire.messages.metadata import MetadataRequest, MetadataResponse
from tidelog.wire.schema import Struct

TIMED_OUT = ApiError(ErrorCode.REQUEST_TIMED_OUT, "why")
ERRORS = [
    (TIMED_OUT, ErrorCode.REQUEST_TIMED_OUT),
    (ConnectionLost("away"), ErrorCode.KAFKA_STORAGE_ERROR),
    (FileNotFoundError(2, "gone"), ErrorCode.KAFKA_STORAGE_ERROR),
    (RuntimeError("a bug"), ErrorCode.UNKNOWN_SERVER_ERROR),
]


def raising(error, *, later=False):
    async def wait():
        await asyncio.sleep(0)
        raise error

    def handler(*_):
        if later:
            return wait()
        raise error

    return handler


def codes(answer):
    """Every code in an answer that is not zero by default."""
    if isinstance(answer, Struct):
        found = []
        if "error_code" in answer._fields:
            found.append(getattr(answer, "error_code"))  # noqa: B009
        return found + [code for name in answer._fields for code in codes(getattr(answer, name))]
    return [code for item in answer for code in codes(item)] if isinstance(answer, list) else []


async def serving(tmp_path, use):
    settings = {"log.dirs": str(tmp_path), "listeners": "PLAINTEXT://127.0.0.1:0"}
    async with Broker(settings) as broker:
        await asyncio.to_thread(use, broker.port)


def break_handler(monkeypatch, api, handler):
    broken = replace(api, handler=api.handler and handler, raw=api.raw and handler)
    monkeypatch.setitem(REGISTRY, api.key, broken)
    for where, hot in HOT.items():
        if hot is api:
            monkeypatch.setitem(HOT, where, broken)


CREATION = create_acls.AclCreation(
    resource_type=2, resource_name="t", principal="p", host="h", operation=3, permission_type=3
)
DIRECTORY = alter_replica_log_dirs.AlterReplicaLogDir(
    path="/d", topics=[alter_replica_log_dirs.AlterReplicaLogDirTopic(name="t", partitions=[0, 1])]
)
# Where the usual sample names nothing that could fail.
NAMED = {
    30: create_acls.CreateAclsRequest(creations=[CREATION]),
    31: delete_acls.DeleteAclsRequest(filters=[delete_acls.DeleteAclsFilter(**ACL_FILTER)]),
    34: alter_replica_log_dirs.AlterReplicaLogDirsRequest(dirs=[DIRECTORY]),
    43: elect_leaders.ElectLeadersRequest(
        topic_partitions=[elect_leaders.TopicPartitions(topic="t", partitions=[0, 1])]
    ),
}
# DescribeLogDirs before version 3 has nowhere to put a code: it shows no directories.
WITHOUT_CODE = {(35, 1), (35, 2)}


@pytest.mark.parametrize("later", [False, True], ids=["at once", "later"])
async def test_every_api_answers_when_its_handler_raises(tmp_path, monkeypatch, later):
    apis = [api for api in REGISTRY.values() if api.handler or not later]
    for api in apis:
        break_handler(monkeypatch, api, raising(TIMED_OUT, later=later))

    def ask(port):
        with RawClient(port) as client:
            wrong = []
            for api in apis:
                for version in range(api.versions[0], api.versions[1] + 1):
                    message = NAMED.get(api.key) or SAMPLES[api.key](version)
                    answer = client.call(message, api.response, version)
                    found = {code for code in codes(answer) if code}
                    expected = {ErrorCode.REQUEST_TIMED_OUT}
                    if (api.key, version) in WITHOUT_CODE:
                        expected = set()
                    if found != expected:
                        wrong.append(f"{api.name} v{version}: {answer}")
            assert not wrong

    await serving(tmp_path, ask)


@pytest.mark.parametrize(("error", "code"), ERRORS, ids=lambda value: type(value).__name__)
@pytest.mark.parametrize("later", [False, True], ids=["at once", "later"])
async def test_what_each_error_is_for_the_client(tmp_path, monkeypatch, caplog, error, code, later):
    api = REGISTRY[16]
    break_handler(monkeypatch, api, raising(error, later=later))

    def ask(port):
        with RawClient(port) as client:
            assert client.call(api.request(), api.response, 4).error_code == code
            assert client.call(MetadataRequest(topics=[]), MetadataResponse, 9).brokers

    await serving(tmp_path, ask)
    logged = [record for record in caplog.records if record.exc_info]
    assert bool(logged) == (code == ErrorCode.UNKNOWN_SERVER_ERROR), "a bug, with its traceback"


@pytest.mark.parametrize("later", [False, True], ids=["at once", "later"])
async def test_an_answer_that_cannot_be_encoded(tmp_path, monkeypatch, caplog, later):

    def handler(*_):
        return asyncio.sleep(0, wrong) if later else wrong

    wrong = REGISTRY[16].response(error_code=0, groups="a bug")
    api = REGISTRY[16]
    break_handler(monkeypatch, api, handler)

    def ask(port):
        with RawClient(port) as client:
            answer = client.call(api.request(), api.response, 4)
            assert answer.error_code == ErrorCode.UNKNOWN_SERVER_ERROR

    await serving(tmp_path, ask)
    assert any(record.exc_info for record in caplog.records)


async def test_produce_without_acks_has_no_answer_but_a_closed_connection(tmp_path, monkeypatch):
    break_handler(monkeypatch, REGISTRY[0], raising(RuntimeError("a bug")))

    def ask(port):
        with RawClient(port) as client:
            data = produce.PartitionProduceData(index=0, records=batch_of(b"x"))
            topic = produce.TopicProduceData(name="t", partition_data=[data])
            client.send(produce.ProduceRequest(acks=0, timeout_ms=1, topic_data=[topic]), 9)
            assert client.hung_up()

    await serving(tmp_path, ask)


async def test_requests_are_counted_and_timed(tmp_path, monkeypatch):
    break_handler(monkeypatch, REGISTRY[12], raising(TIMED_OUT, later=True))
    settings = {"log.dirs": str(tmp_path), "listeners": "PLAINTEXT://127.0.0.1:0"}

    def ask(port):
        with RawClient(port) as client:
            client.create_topic("t")
            for _ in range(3):
                client.produce("t", batch_of(b"x"))
            client.produce("t", batch_of(b"x"), acks=-1)
            for key in (12, 12, 1):
                api = REGISTRY[key]
                client.call(SAMPLES[key](4), api.response, 4)

    async with Broker(settings) as broker:
        await asyncio.to_thread(ask, broker.port)
        stats = broker.server.request_stats
        produced, fetched, beaten = stats[0], stats[1], stats[12]
        assert (produced.count, fetched.count, beaten.count) == (4, 1, 2)
        assert beaten.errors == {ErrorCode.REQUEST_TIMED_OUT: 2}
        for api in (produced, fetched, beaten):
            assert 0 < api.longest <= api.seconds
        assert stats[3].count == 0, "not asked for"


@pytest.mark.parametrize("key", [8, 11, 14, 47, 68])
async def test_a_late_answer_that_cannot_be_encoded(tmp_path, monkeypatch, caplog, key):
    api = REGISTRY[key]
    version = api.versions[1]
    response: Any = api.response
    list_field = "topics" if key in (8, 47) else "error_code"
    wrong = response(**{list_field: "a bug"})

    def handler(_broker, _message, request):
        asyncio.get_running_loop().call_soon(request.reply, wrong)

    break_handler(monkeypatch, api, handler)

    def ask(port):
        with RawClient(port) as client:
            answer = client.call(SAMPLES[key](version), api.response, version)
            assert set(codes(answer)) <= {ErrorCode.UNKNOWN_SERVER_ERROR}

    await serving(tmp_path, ask)
    assert any(record.exc_info for record in caplog.records)
