"""Fuzz a member of a cluster: it gets the mutants, and must go on to obey the true controller.

Two brokers on a real ZooKeeper.  A block has two parts.  In the first the member gets every
request, among them those that only brokers send, and a stranger does not know enough for those
that are believed.  In the second it gets only what a controller sends, with all epochs right;
UpdateMetadata is believed then, so what the member tells clients may be wrong meanwhile.  After
each block another controller is elected: the member must take its word, whatever it heard before.

    no files    outside of its log.dirs, and no log of a topic that exists is touched
    obedient    what the new controller says is what the member says, within seconds
    and what fuzzing.py asks of every broker: answers, no traceback, no leak
"""

import json

from faults.broker_requests import BrokerRequests, Facts
from faults.corpus import LOOKED_INTO, LOOKED_INTO_CONFIG, PLAIN_CONFIG, TOPIC
from faults.fuzzing import PROBE_TOPIC, Fuzzer, Violation
from faults.mutations import Mutator
from kazoo.client import KazooClient
from kazoo.exceptions import NoNodeError
from support.cluster import topic_state
from support.raw_client import RawClient
from support.waiting import until

from tidelog.errors import ErrorCode
from tidelog.testing import LocalCluster
from tidelog.wire.messages.create_topics import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from tidelog.wire.messages.delete_topics import (
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    DeleteTopicState,
)
from tidelog.wire.messages.metadata import MetadataRequest, MetadataResponse
from tidelog.wire.uuids import uuid_text

SETTINGS = {
    "zookeeper.session.timeout.ms": 30_000,
    "replica.lag.time.max.ms": 30_000,
    "offsets.topic.num.partitions": 5,
    "auto.leader.rebalance.enable": "false",
}
HANG = 100.0  # a request may be passed on to the controller, which may wait for ZooKeeper
_GONE_OR_AGAIN = (
    ErrorCode.NONE,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ErrorCode.NOT_CONTROLLER,
)
TRUSTED_EVERY = 5  # of so many requests one is a controller's, in the second part


class Member:
    """See the module.  ``broker`` is fuzzed, ``other`` is asked for the truth."""

    def __init__(self, data, zookeeper=None):
        self.cluster = LocalCluster(2, SETTINGS, data=data, zookeeper=zookeeper)
        self.broker, self.other = self.cluster.brokers.values()
        self._ids = {}  # of the topics that we have made

    def __enter__(self):
        self.cluster.__enter__()
        self._keeper = KazooClient(self.cluster.zookeeper)
        self._keeper.start(100)
        self._create(PROBE_TOPIC, [[self.broker.broker_id]])
        self.tidy()
        self.fuzzer = Fuzzer(self.broker.port, 0, self.facts.topic_id)
        self.fuzzer.hang = HANG
        self._outside = self._names_outside()
        return self

    def __exit__(self, *error):
        self._keeper.stop()
        self._keeper.close()
        self.cluster.__exit__(*error)

    def run(self, seed, requests):
        """One block; returns how many topics and partitions it has made."""
        for trusted in (False, True):
            count = requests // TRUSTED_EVERY if trusted else requests
            mutator = Mutator(f"{seed} {trusted}", self.facts.topic_id)
            rows = BrokerRequests(mutator.random, self.facts, trusted).rows
            mutator.use(rows if trusted else mutator.samples + rows)
            self.fuzzer.mutator = mutator
            self.fuzzer.probes.metadata_is_known = not trusted
            self.fuzzer.run(count)
            self.fuzzer.close()
        self._elect()
        self._check_files()
        return self.tidy()

    # -- the truth ----------------------------------------------------------------

    def _json(self, path):
        data, stat = self._keeper.get(path)
        return json.loads(data), stat

    def _elect(self):
        """Another controller, and what it says is what the member says."""
        before = int(self._keeper.get("/controller_epoch")[0])
        self._keeper.delete("/controller")

        def elected():
            try:
                self._keeper.get("/controller")
            except NoNodeError:
                return False
            return int(self._keeper.get("/controller_epoch")[0]) > before

        until(elected, "another controller is elected")
        until(lambda: self._told(self.broker) == self._told(self.other), "the member obeys")

    def _told(self, broker):
        with RawClient(broker.port) as client:
            answer = client.call(MetadataRequest(topics=None), MetadataResponse, 12)
        topics = {
            topic.topic_id: sorted(
                (row.partition_index, row.leader_id, row.leader_epoch, *row.isr_nodes)
                for row in topic.partitions
            )
            for topic in answer.topics
        }
        return answer.controller_id, sorted(row.port for row in answer.brokers), topics

    def _names_outside(self):
        data = self.cluster.data
        return sorted(path.name for folder in (data.parent, data) for path in folder.iterdir())

    def _check_files(self):
        outside = self._names_outside()
        if outside != self._outside:
            raise Violation(f"files outside of log.dirs: {outside}, before {self._outside}")
        # Mutants delete topics, too: a log whose topic is deleted just now may be quarantined.
        for topic, topic_id in self._ids.items():
            if topic_state(self.other, topic).topic_id == topic_id:
                identity = self.broker.data / f"{topic}-0" / "partition.metadata"
                if uuid_text(topic_id) not in identity.read_text():
                    raise Violation(f"{identity}: not the log of {topic}")

    # -- topics -------------------------------------------------------------------

    def tidy(self):
        """Delete every topic but the probes', and make the base topics anew."""
        with RawClient(self.other.port) as client:
            answer = client.call(MetadataRequest(topics=None), MetadataResponse, 9)
            topics = [topic for topic in answer.topics if topic.name != PROBE_TOPIC]
            until(lambda: self._delete(client, [topic.name for topic in topics]), "all are deleted")
        here, there = self.broker.broker_id, self.other.broker_id
        topic_id = self._create(TOPIC, [[here, there]] * 2, **PLAIN_CONFIG)
        self._create(LOOKED_INTO, [[here]], **LOOKED_INTO_CONFIG)
        self.facts = self._facts(topic_id)
        return len(topics), sum(len(topic.partitions) for topic in topics)

    def _delete(self, client, names):
        """Ask once; False if the controller stepped down meanwhile, which a client tries again."""
        rows = [DeleteTopicState(name=name) for name in names]
        request = DeleteTopicsRequest(topics=rows, timeout_ms=60_000)
        results = client.call(request, DeleteTopicsResponse, 6).responses
        for result in results:
            if result.error_code not in _GONE_OR_AGAIN:
                raise Violation(f"{result.name!r} cannot be deleted: {result.error_message}")
        return all(result.error_code != ErrorCode.NOT_CONTROLLER for result in results)

    def _create(self, name, assignment, **config):
        topic = CreatableTopic(
            name=name,
            num_partitions=-1,
            replication_factor=-1,
            assignments=[
                CreatableReplicaAssignment(partition_index=i, broker_ids=brokers)
                for i, brokers in enumerate(assignment)
            ],
            configs=[
                CreatableTopicConfig(name=key.replace("_", "."), value=str(value))
                for key, value in config.items()
            ],
        )
        with RawClient(self.other.port) as client:
            request = CreateTopicsRequest(topics=[topic])
            answer = client.call(request, CreateTopicsResponse, 7).topics[0]
        if answer.error_code:
            raise Violation(f"{name} cannot be created: {answer.error_message}")
        until(lambda: topic_state(self.broker, name).topic_id == answer.topic_id, "it is known")
        self._ids[name] = answer.topic_id
        return answer.topic_id

    def _facts(self, topic_id):
        states = []
        for i in range(2):
            value, stat = self._json(f"/brokers/topics/{TOPIC}/partitions/{i}/state")
            states.append((value["leader"], value["leader_epoch"], value["isr"], stat.version))
        return Facts(
            controller_id=self._json("/controller")[0]["brokerid"],
            controller_epoch=self._json("/controller_epoch")[0],
            broker_id=self.broker.broker_id,
            broker_epoch=self._json(f"/brokers/ids/{self.broker.broker_id}")[1].czxid,
            ports={broker.broker_id: broker.port for broker in self.cluster.brokers.values()},
            topic=TOPIC,
            topic_id=topic_id,
            states=states,
        )
