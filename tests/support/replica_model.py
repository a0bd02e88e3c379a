"""Three replicas of one partition in one process, with real logs; steps are taken one by one.

What was ever below a high watermark is remembered, and must stay what it was, or be deleted.
"""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

from support.log import SEED, make_batch

from tidelog.clock import FakeClock
from tidelog.controller import elections
from tidelog.errors import ApiError, ErrorCode
from tidelog.log.manager import LogManager
from tidelog.metadata import PartitionInfo, TopicInfo
from tidelog.partition.leader import Leader
from tidelog.partition.partition import Partition
from tidelog.partition.replicas import Replicas
from tidelog.settings import LogConfig, Settings
from tidelog.wire.records import decode_batch, split_batches

BROKERS = (1, 2, 3)
TOPIC = TopicInfo("t", b"\1" * 16, (), {})
KEY = ("t", 0)
CONFIG = LogConfig.of(Settings.of(), {"segment.bytes": "400"})


class Replica:
    """One broker: its log survives a restart, what is in memory does not."""

    def __init__(self, world: World, broker_id: int) -> None:
        self.world = world
        self.broker_id = broker_id
        self.path = str(world.path / str(broker_id))
        self.start()

    def start(self) -> None:
        self.manager = LogManager([self.path], self.world.clock)
        self.manager.open()
        self.manager.load(lambda _: CONFIG, lambda *_: None)
        self.replicas = Replicas(self.manager, lambda _: CONFIG, self.broker_id, self.world.clock)
        self.replicas.propose_isr = self.propose
        self.up = True
        self.proposal: tuple[int, tuple[int, ...], int] | None = None

    def crash(self) -> None:
        """kill -9: the page cache stays, checkpoints are as old as the last one."""
        if self.world.random.random() < 0.5:
            self.manager.write_checkpoints()
        self.up = False
        self.manager.release()

    def propose(self, leader: Leader, isr: tuple[int, ...]) -> None:
        assert leader.in_sync_set is not None
        leader.in_sync_set.propose(isr)
        self.proposal = (leader.epoch, isr, leader.in_sync_set.partition_epoch)

    @property
    def partition(self) -> Partition | None:
        return self.replicas.partitions.get(KEY) if self.up else None


class World:
    """The controller's knowledge, the brokers, and what was ever committed."""

    def __init__(self, path: Path, seed: int) -> None:
        self.path = path
        self.random = random.Random(f"{SEED} {seed}")
        self.clock = FakeClock()
        self.info = PartitionInfo(1, 0, BROKERS, BROKERS)
        self.live = set(BROKERS)
        self.committed: dict[int, bytes] = {}
        self.number = 0
        self.history: list[str] = []
        self.replicas = {broker: Replica(self, broker) for broker in BROKERS}
        for broker in BROKERS:
            self.tell(broker)

    # -- what may happen ----------------------------------------------------------

    def tell(self, broker: int) -> None:
        """An order of the controller arrives (others may never hear of it)."""
        if self.replicas[broker].up:
            self.replicas[broker].replicas.take(TOPIC, 0, self.info)

    def append(self) -> None:
        """A producer finds whoever takes itself for the leader; there may be several."""
        for replica in self.leaders():
            for _ in range(self.random.randint(1, 3)):
                count = self.random.choice((1, 1, 3))
                numbers = range(self.number, self.number + count)
                self.number += count
                batch = memoryview(bytearray(make_batch([str(n).encode() for n in numbers])))
                assert replica.partition is not None
                replica.partition.require_leader().append(batch, 9, self.clock.now_ms())

    def delete(self) -> None:
        """DeleteRecords, also within a batch."""
        for replica in self.leaders():
            partition = replica.partition
            assert partition is not None
            if partition.leader_epoch == self.info.leader_epoch:
                start, end = partition.log.log_start_offset, partition.high_watermark
                partition.require_leader().delete_records(self.random.randint(start, end))

    def leaders(self) -> list[Replica]:
        found = [r for r in self.replicas.values() if r.partition is not None]
        return [r for r in found if r.partition is not None and r.partition.leads]

    def fetch(self, broker: int) -> None:
        """A follower fetches from the leader that it knows of, and appends what it gets."""
        own = self.replicas[broker].partition
        follower = own.follower if own is not None else None
        if own is None or follower is None:
            return
        for replica in self.replicas.values():
            leader = replica.partition
            if leader is None or leader is own:
                continue
            offset, last_epoch = own.log.end_offset, own.log.last_epoch
            try:
                leader.check_leader(own.leader_epoch)
                parts = leader.diverging(offset, last_epoch) if last_epoch >= 0 else None
                if parts is not None:
                    follower.truncate_diverged(*parts)
                    return
                leader.require_leader().follower_fetched(broker, offset, self.clock.now_ms())
                found = leader.read_as_follower(
                    offset, self.random.choice((1, 200, 10_000)), at_least_one=True
                )
                high, start = leader.log.high_watermark, leader.log.log_start_offset
            except ApiError as error:
                if error.code == ErrorCode.OFFSET_OUT_OF_RANGE:
                    follower.reposition(leader.log.log_start_offset, leader.log.end_offset)
                continue
            records = memoryview(bytearray(found.read())) if found else None
            follower.append(records, high, start, self.clock.now_ms())

    def decide(self, broker: int) -> None:
        """The controller answers a proposal, as its rules are.

        The answer may get lost: then the leader asks again, though the controller may have
        agreed, and so it does when it is told that its question is old.
        """
        replica = self.replicas[broker]
        leader = replica.partition.leader if replica.partition is not None else None
        state = leader.in_sync_set if leader is not None else None
        if replica.proposal is None or leader is None or state is None:
            return
        epoch, isr, partition_epoch = replica.proposal
        if state.proposed != isr:
            replica.proposal = None
            return
        info = self.info
        known = info.leader == broker and info.leader_epoch == epoch
        if not known or info.partition_epoch != partition_epoch:
            return
        eligible = all(b in self.live for b in isr if b not in info.isr)
        if eligible:
            self.info = replace(info, isr=isr, partition_epoch=partition_epoch + 1)
        if self.random.random() < 0.8:
            replica.proposal = None
            if eligible:
                leader.isr_decided(isr, isr, partition_epoch + 1)
            else:
                leader.isr_refused(isr)

    def die(self, broker: int) -> None:
        self.replicas[broker].crash()

    def notice(self) -> None:
        """The controller learns who lives, and decides; the orders come later, one by one."""
        self.live = {b for b, r in self.replicas.items() if r.up}
        after = elections.settle(self.info, self.live)
        if after is not self.info:
            self.info = replace(after, partition_epoch=self.info.partition_epoch + 1)

    def come_back(self, broker: int) -> None:
        """A restarted broker has lost its place in the in-sync set before it may lead."""
        self.live.discard(broker)
        after = elections.settle(self.info, self.live)
        if after is not self.info:
            self.info = replace(after, partition_epoch=self.info.partition_epoch + 1)
        self.replicas[broker].start()
        self.live.add(broker)
        self.notice()
        self.tell(broker)

    def forget_a_living_leader(self) -> None:
        """Its session is over and it does not know: another is elected meanwhile."""
        others = self.live - {self.info.leader}
        after = elections.settle(self.info, others)
        if after is not self.info and after.leader != elections.NO_LEADER:
            self.info = replace(after, partition_epoch=self.info.partition_epoch + 1)
            self.tell(after.leader)

    def step(self) -> None:
        self.clock.advance(self.random.choice((1, 10, 3000)))
        broker = self.random.choice(BROKERS)
        up = self.replicas[broker].up
        what = self.random.choices(
            (
                "append",
                "fetch",
                "decide",
                "tell",
                "lag",
                "die",
                "back",
                "notice",
                "zombie",
                "delete",
            ),
            (5, 12, 5, 5, 1, 0.4, 2, 1, 0.5, 0.5),
        )[0]
        self.history.append(f"{what} {broker}")
        if what == "append":
            self.append()
        elif what == "fetch" and up:
            self.fetch(broker)
        elif what == "decide" and up:
            self.decide(broker)
        elif what == "tell":
            self.tell(broker)
        elif what == "lag":
            for replica in self.leaders():
                assert replica.partition is not None
                replica.partition.require_leader().check_lag(self.clock.now_ms(), 2000)
        elif what == "die" and up:
            self.die(broker)
        elif what == "back" and not up:
            self.come_back(broker)
        elif what == "notice":
            self.notice()
        elif what == "zombie":
            self.forget_a_living_leader()
        elif what == "delete":
            self.delete()
        self.check()

    def close(self) -> None:
        for replica in self.replicas.values():
            replica.manager.release()

    # -- what must hold -----------------------------------------------------------

    def check(self) -> None:
        for replica in self.replicas.values():
            partition = replica.partition
            if partition is None:
                continue
            log = partition.log
            assert log.log_start_offset <= log.high_watermark <= log.end_offset
            for offset, value in values(partition, log.high_watermark).items():
                known = self.committed.setdefault(offset, value)
                assert known == value, (
                    f"broker {replica.broker_id}, offset {offset}: {value!r}, "
                    f"but {known!r} was committed; {self.history}"
                )


def values(partition: Partition, end: int) -> dict[int, bytes]:
    found = partition.log.read(partition.log.log_start_offset, 1 << 30, end, at_least_one=True)
    result: dict[int, bytes] = {}
    start = position = partition.log.log_start_offset
    while found is not None:
        for batch in split_batches(found.read()):
            for record in decode_batch(batch):
                if record.offset >= start:
                    result[record.offset] = record.value or b""
                position = record.offset + 1
        found = partition.log.read(position, 1 << 30, end, at_least_one=True)
    return result
