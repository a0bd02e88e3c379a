"""Requests that are almost right, by the ten thousand: see mutations.py and fuzzing.py.

``./dev soak --fuzz`` does the same for millions.
"""

import os
import struct
import tempfile

import pytest
from faults.fuzzing import TOPIC, Fuzzer, Watchdog, tidy
from faults.member import Member
from faults.mutations import Mutator
from support.measure import (
    GIVE_BACK,
    MIB,
    check_log,
    closed_again,
    descriptors,
    in_memory,
    resident,
)
from support.raw_client import RawClient, batch_of

from tidelog.errors import ErrorCode
from tidelog.testing import LocalBroker
from tidelog.wire.messages.alter_configs import (
    AlterableConfig,
    AlterConfigsRequest,
    AlterConfigsResource,
    AlterConfigsResponse,
)
from tidelog.wire.messages.metadata import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
)

REQUESTS = 20_000


def test_mutated_requests_never_hurt(monkeypatch):
    monkeypatch.setenv(*GIVE_BACK)
    seed = int(os.environ.get("FUZZ_SEED") or int.from_bytes(os.urandom(4), "big"))
    print(f"FUZZ_SEED={seed}")
    with (
        tempfile.TemporaryDirectory(dir=in_memory()) as folder,
        LocalBroker(data=f"{folder}/data") as broker,
        RawClient(broker.port) as client,
    ):
        fuzzer = Fuzzer(broker.port, seed, tidy(client)[0])
        fuzzer.run(2000)  # every decoder is compiled, every buffer has been large
        fuzzer.close()
        fuzzer.mutator = Mutator(f"{seed} 0", tidy(client)[0])
        memory, open_files = resident(broker), descriptors(broker)
        with Watchdog(broker.port) as watchdog:
            for part in range(1, 6):
                fuzzer.run(REQUESTS // 5)
                fuzzer.mutator = Mutator(f"{seed} {part}", tidy(client)[0])
            fuzzer.close()
        print(fuzzer.outcomes, f"longest wait {watchdog.longest():.2f} s")
        check_log(broker.log)
        assert len(broker.log) < 200 * REQUESTS // 10, "complaints are held back"
        closed_again(broker, open_files)
        assert resident(broker) - memory < 20 * MIB
        fuzzer.probes.check_all(client)
        assert client.produce(TOPIC, batch_of(b"still here")).error_code == 0


@pytest.mark.timeout(600)
def test_mutated_requests_to_a_member_of_a_cluster(zookeeper, monkeypatch, tmp_path):
    """Also those that only brokers send; the true controller is obeyed after them."""
    monkeypatch.setenv(*GIVE_BACK)
    seed = int(os.environ.get("FUZZ_SEED") or int.from_bytes(os.urandom(4), "big"))
    print(f"FUZZ_SEED={seed}")
    with Member(tmp_path / "cluster", zookeeper) as member:
        member.run(f"{seed} 0", 1000)
        memory = resident(member.broker)
        with Watchdog(member.broker.port) as watchdog:
            for part in range(1, 3):
                member.run(f"{seed} {part}", 1000)
        print(member.fuzzer.outcomes, f"longest wait {watchdog.longest():.2f} s")
        for broker in (member.broker, member.other):
            check_log(broker.log)
        assert resident(member.broker) - memory < 64 * MIB
        with RawClient(member.broker.port) as client:
            member.fuzzer.probes.check_all(client)


@pytest.fixture(scope="module")
def broker():
    with LocalBroker() as running:
        yield running
        assert "Traceback" not in running.log, running.log


@pytest.fixture
def client(broker):
    with RawClient(broker.port) as connected:
        yield connected


def test_a_name_that_grows_when_it_is_quoted(client):
    """The error message quotes it, and must still fit into an answer of the old format."""
    row = AlterableConfig(name="retention.ms", value="1")
    resource = AlterConfigsResource(resource_type=2, resource_name="\0" * 32767, configs=[row])
    request = AlterConfigsRequest(resources=[resource], validate_only=False)
    for version in (0, 2):
        answer = client.call(request, AlterConfigsResponse, version).responses[0]
        assert answer.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert len(answer.error_message) < 2000


@pytest.mark.parametrize("version", [10, 11])
@pytest.mark.parametrize("fields", [{"name": None}, {"name": "x", "topic_id": bytes(range(16))}])
def test_metadata_by_id_before_it_existed(client, version, fields):
    request = MetadataRequest(topics=[MetadataRequestTopic(**fields)])
    answer = client.call(request, MetadataResponse, version)
    assert [topic.error_code for topic in answer.topics] == [ErrorCode.INVALID_REQUEST]


def test_complaints_of_many_kinds_do_not_fill_the_log(broker, client):
    before = len(broker.log)
    for i in range(500):
        with RawClient(broker.port) as bad:
            # A different complaint each time: another API, another version.
            body = struct.pack(">hhi", i % 20, 100 + i, 1) + b"\x00\x01x"
            bad.sock.sendall(struct.pack(">i", len(body)) + body)
            if i % 20 != 18:  # ApiVersions of the future gets an answer
                assert bad.hung_up()
    assert len(broker.log) - before < 20_000
    assert client.call(MetadataRequest(topics=[]), MetadataResponse, 9).brokers
