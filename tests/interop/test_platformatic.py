"""@platformatic/kafka, a modern client for Node.  Its consumer needs groups; its fetch does not."""

import json
import shutil
import subprocess

import pytest
from interop.building import HERE, build, heavy, run_fetch
from interop.drivers import Driver, DriverError
from support.client_records import CODECS, EDGES, Row, batches_on_disk, codecs_on_disk, compressible

pytestmark = heavy("node", "npm")
_FOLDER = HERE / "platformatic"
TOPIC_RESOURCE = 2


def program():
    sources = [path for path in _FOLDER.iterdir() if path.is_file()]

    def install(folder):
        for source in sources:
            shutil.copy(source, folder)
        quiet = ("--loglevel=error", "--no-audit", "--no-fund")
        run_fetch("npm", "ci", "--omit=optional", *quiet, "--prefix", folder)

    return build("platformatic", sources, install) / "run.mjs"


def node_major():
    text = subprocess.run(["node", "--version"], capture_output=True, text=True, check=True).stdout
    return int(text[1:].split(".")[0])


@pytest.fixture(scope="module")
def client():
    with Driver(["node", program()]) as driver:
        yield driver


@pytest.fixture
def admin(client, broker):
    return lambda method, **argument: client(
        "admin", broker.bootstrap, method=method, argument=argument
    )


@pytest.mark.parametrize("codec", CODECS)
def test_codec(client, broker, topic, codec):
    if codec == "zstd" and node_major() < 22:
        pytest.skip("zstd needs Node 22")
    assert client.produce(broker.bootstrap, topic, compressible(), codec=codec) == [0, 1, 2]
    assert codecs_on_disk(broker, topic) == {codec}
    assert client.consume(broker.bootstrap, topic, 3) == compressible()


def test_nulls_empties_and_headers(client, broker, topic):
    client.produce(broker.bootstrap, topic, EDGES)
    assert client.consume(broker.bootstrap, topic, len(EDGES)) == EDGES
    assert client.consume(broker.bootstrap, topic, 2, start=4) == EDGES[4:]


@pytest.mark.parametrize("plain", [False, True])
def test_idempotent_producer(client, broker, topic, plain):
    client.produce(broker.bootstrap, topic, [Row(None, b"x")] * 10, plain=plain)
    found = batches_on_disk(broker, topic)
    assert {batch.producer_id >= 0 for batch in found} == {not plain}


def test_admin(client, admin, broker, topic):
    config = {"name": "retention.ms", "value": "1000"}
    [made] = admin("createTopics", topics=[topic], partitions=2, replicas=1, configs=[config])
    assert (made["partitions"], made["configuration"]["retention.ms"]) == (2, "1000")
    with pytest.raises(DriverError) as failed:
        admin("createTopics", topics=[topic], partitions=2, replicas=1)
    assert failed.value.type == "TOPIC_ALREADY_EXISTS"
    assert topic in admin("listTopics")
    resource = {"resourceType": TOPIC_RESOURCE, "resourceName": topic}
    change = {**config, "configOperation": 0, "value": "5000000"}
    admin("incrementalAlterConfigs", resources=[{**resource, "configs": [change]}])
    keys = {**resource, "configurationKeys": ["retention.ms"]}
    [described] = admin("describeConfigs", resources=[keys], includeSynonyms=True)
    assert described["configs"][0]["value"] == "5000000"
    client.produce(broker.bootstrap, topic, [Row(None, b"x")] * 5)
    cut = [{"name": topic, "partitions": [{"partition": 0, "offset": "3n"}]}]
    [deleted] = admin("deleteRecords", topics=cut)
    assert '"lowWatermark": 3' in json.dumps(deleted)
    where = [{"name": topic, "partitions": [{"partitionIndex": 0, "timestamp": "-1n"}]}]
    [listed] = admin("listOffsets", topics=where)
    assert listed["partitions"][0]["offset"] == 5
    [logs] = admin("describeLogDirs", topics=[{"name": topic, "partitions": [0]}])
    size = (broker.data / f"{topic}-0" / f"{0:020}.log").stat().st_size
    assert logs["results"][0]["topics"][0]["partitions"][0]["partitionSize"] == size
    admin("deleteTopics", topics=[topic])
    assert topic not in admin("listTopics")
