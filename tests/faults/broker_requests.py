"""Requests that only brokers send, as one sends them who knows the cluster: seeds for the fuzzer.

LeaderAndIsr and StopReplica have the true epochs: what they say is compared with ZooKeeper.
UpdateMetadata has them only where ``trusted`` says so, as it is believed then.  AlterPartition,
ControlledShutdown and the fetches of a replica never have: with the epoch of a live broker they
count, until brokers authenticate themselves.
"""

from dataclasses import dataclass

from support import request_samples as every

from tidelog.wire.messages import (
    alter_partition,
    controlled_shutdown,
    fetch,
    leader_and_isr,
    stop_replica,
    update_metadata,
)

WRONG = 1_000_000  # epochs off by so much: no mutation finds the true one


@dataclass
class Facts:
    """What the controller knows."""

    controller_id: int
    controller_epoch: int
    broker_id: int  # who is asked
    broker_epoch: int
    ports: dict[int, int]  # of all brokers
    topic: str
    topic_id: bytes
    states: list[tuple[int, int, list[int], int]]  # leader, its epoch, in-sync set, version


class BrokerRequests:
    """``rows`` are like those of the corpus: key, version, and how a message is made."""

    def __init__(self, rng, facts, trusted):
        self._random = rng
        self._facts = facts
        self._trusted = trusted
        makes = {4: self._leader_and_isr, 5: self._stop_replica, 6: self._update_metadata}
        if not trusted:
            makes |= {1: self._fetch, 7: self._controlled_shutdown, 56: self._alter_partition}
        self.rows = [
            (key, version, makes[key])
            for key, version in every.CASES
            if key in makes
            for _ in range(1 if key == 1 else 12)
        ]

    def _sender(self, *, epoch_is_right=True):
        facts = self._facts
        return {
            "controller_id": facts.controller_id,
            "controller_epoch": facts.controller_epoch,
            "broker_epoch": facts.broker_epoch + (0 if epoch_is_right else WRONG),
        }

    def _leader_and_isr(self, _):
        facts = self._facts
        rows = [
            leader_and_isr.LeaderAndIsrPartitionState(
                partition_index=i,
                controller_epoch=facts.controller_epoch,
                leader=leader,
                leader_epoch=epoch,
                isr=list(isr),
                partition_epoch=version,
                replicas=list(isr),
                adding_replicas=[],
                removing_replicas=[],
            )
            for i, (leader, epoch, isr, version) in enumerate(facts.states)
        ]
        topic = leader_and_isr.LeaderAndIsrTopicState(
            topic_name=facts.topic, topic_id=facts.topic_id, partition_states=rows
        )
        return leader_and_isr.LeaderAndIsrRequest(
            type=self._random.randrange(4),
            topic_states=[topic] if self._random.random() < 0.9 else [],
            live_leaders=[
                leader_and_isr.LeaderAndIsrLiveLeader(
                    broker_id=broker, host_name="127.0.0.1", port=port
                )
                for broker, port in facts.ports.items()
            ],
            **self._sender(),
        )

    def _stop_replica(self, _):
        rows = [
            stop_replica.StopReplicaPartitionState(
                partition_index=i, leader_epoch=-2, delete_partition=self._random.random() < 0.5
            )
            for i in range(len(self._facts.states))
        ]
        topic = stop_replica.StopReplicaTopicState(
            topic_name=self._facts.topic, partition_states=rows
        )
        return stop_replica.StopReplicaRequest(topic_states=[topic], **self._sender())

    def _update_metadata(self, _):
        facts = self._facts
        rows = [
            update_metadata.UpdateMetadataPartitionState(
                partition_index=i,
                controller_epoch=facts.controller_epoch,
                leader=leader,
                leader_epoch=epoch,
                isr=list(isr),
                zk_version=version,
                replicas=list(isr),
                offline_replicas=[],
            )
            for i, (leader, epoch, isr, version) in enumerate(facts.states)
        ]
        topic = update_metadata.UpdateMetadataTopicState(
            topic_name=facts.topic, topic_id=facts.topic_id, partition_states=rows
        )
        brokers = [
            update_metadata.UpdateMetadataBroker(
                id=broker,
                endpoints=[
                    update_metadata.UpdateMetadataEndpoint(
                        port=port, host="127.0.0.1", listener="PLAINTEXT", security_protocol=0
                    )
                ],
            )
            for broker, port in facts.ports.items()
        ]
        return update_metadata.UpdateMetadataRequest(
            type=self._random.randrange(4),
            topic_states=[topic],
            live_brokers=brokers,
            **self._sender(epoch_is_right=self._trusted),
        )

    def _fetch(self, v):
        request = every.sample_fetch(v)
        other = next(broker for broker in self._facts.ports if broker != self._facts.broker_id)
        request.replica_id = other
        epoch = self._random.choice((-1, WRONG))
        request.replica_state = fetch.ReplicaState(replica_id=other, replica_epoch=epoch)
        request.topics[0].partitions[0].fetch_offset = self._random.randrange(3)
        return request

    def _alter_partition(self, _):
        facts = self._facts
        rows = [
            alter_partition.PartitionChange(
                partition_index=i,
                leader_epoch=epoch,
                new_isr=list(isr),
                new_isr_with_epochs=[
                    alter_partition.BrokerState(broker_id=broker, broker_epoch=-1) for broker in isr
                ],
                partition_epoch=version,
            )
            for i, (_, epoch, isr, version) in enumerate(facts.states)
        ]
        return alter_partition.AlterPartitionRequest(
            broker_id=facts.broker_id,
            broker_epoch=facts.broker_epoch + WRONG,
            topics=[alter_partition.TopicChange(topic_id=facts.topic_id, partitions=rows)],
        )

    def _controlled_shutdown(self, _):
        return controlled_shutdown.ControlledShutdownRequest(
            broker_id=self._facts.broker_id, broker_epoch=self._facts.broker_epoch + WRONG
        )
