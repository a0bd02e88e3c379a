"""A consumer group under random schedules: members that come, go, die, restart and are slow.

Each member behaves as clients do, but may be slow to give partitions up, lose an answer or
stop for ever; writes may be slow or fail, topics change, and the coordinator may restart from
its log at any time.  What must hold:

- the state of the group is the replay of its records, with those that are not written yet;
- no partition has two owners, neither in the coordinator nor among the clients it knows;
- epochs never go back;
- no request is answered twice, and each is answered in the end;
- once the faults stop, the group becomes Stable: every partition owned exactly once, and
  nobody has two more than another.
"""

import os
import random

import pytest
from support.consumer_group import Owner, cluster, slots, what_records_say

from tidelog.coordinators.groups.consumer_records import records
from tidelog.coordinators.groups.states import GroupState
from tidelog.errors import ErrorCode

SEED = os.environ.get("TIDELOG_SEED", "1")
JOIN_AGAIN = {ErrorCode.FENCED_MEMBER_EPOCH, ErrorCode.UNKNOWN_MEMBER_ID}
TRY_AGAIN = {ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE}


class SimulatedConsumer:
    """A consumer: it has at most one request under way, like a real one."""

    def __init__(self, world, member_id, instance_id=None):
        self.world, self.member_id, self.instance_id = world, member_id, instance_id
        self.epoch = 0
        self.given = self.owned = frozenset()  # what it was told to hold, and what it holds
        self.said = None  # what it has told the coordinator that it holds
        self.full = True
        self.token = None
        self.alive = True

    def step(self):
        if self.token is not None:
            self.look()
            return
        rng = self.world.rng
        if self.owned != self.given and rng.random() < 0.7:
            self.owned = self.given
        if self.epoch == 0:
            self.owned = self.given = frozenset()
        more = {"instance_id": self.instance_id}
        if self.full or self.epoch == 0:
            timeout = rng.choice((20_000, 20_000, 25_000))  # it was configured anew
            more |= {"topics": self.world.wanted, "rebalance_ms": timeout, "owned": self.owned}
        elif self.owned != self.said:
            more["owned"] = self.owned
        self.sent = more.get("owned")
        self.token = self.world.owner.send(self.member_id, self.epoch, **more)
        self.world.after()

    def look(self):
        if self.token not in self.world.owner.answers:
            return
        result, self.token = self.world.owner.answers[self.token], None
        if self.world.rng.random() < self.world.loss or result.error in TRY_AGAIN:
            self.full = True
        elif result.error in JOIN_AGAIN:
            self.epoch = 0
            self.given = self.owned = frozenset()
        elif result.error in (ErrorCode.FENCED_INSTANCE_ID, ErrorCode.UNRELEASED_INSTANCE_ID):
            self.alive = self.world.rng.random() < 0.5  # some give up, some try again
        elif result.error == ErrorCode.GROUP_MAX_SIZE_REACHED:
            self.alive = False
        else:
            assert result.error == ErrorCode.NONE, result
            assert result.epoch >= self.epoch
            self.epoch, self.full = result.epoch, False
            if self.sent is not None:
                self.said = self.sent
            if result.assignment is not None:
                self.given = result.assignment


class World:
    """The members, the coordinator and what happens to them."""

    def __init__(self, rng):
        self.rng = rng
        self.partitions = {"clicks": 5, "views": 2}
        self.wanted = frozenset({"clicks", "views"})
        assignors = rng.choice((("uniform", "range"), ("range",)))
        self.owner = Owner(
            hold=True,
            metadata=cluster(**self.partitions),
            session_ms=15_000,
            max_size=8,
            assignors=assignors,
        )
        self.members = []
        self.names = iter(range(10**6))
        self.epochs = (0, 0)
        self.member_epochs = {}
        self.log_speed = rng.choice((1, 0.5, 0.1))
        self.loss = 0.05

    def add(self, instance_id=None):
        self.members.append(SimulatedConsumer(self, f"m{next(self.names)}", instance_id))

    def after(self):
        self.check()
        while self.owner.in_flight and self.rng.random() < self.log_speed:
            error = ErrorCode.NONE
            if self.rng.random() < 0.03:
                error = ErrorCode.COORDINATOR_NOT_AVAILABLE
            self.owner.store(error, late=self.rng.random() < 0.5)
            self.check()

    def check(self):
        group = self.owner.group
        # The state is the replay of the records: stored, under way, and marked to be written.
        replayed = self.owner.compacted.replayed(
            *(write.records for write in self.owner.in_flight),
            records(group.image, group.image.dirty),
        )
        assert what_records_say(replayed) == what_records_say(group.image)
        epochs = (group.epoch, group.target_epoch)
        assert epochs >= self.epochs
        assert group.target_epoch <= group.epoch
        self.epochs = epochs
        held = [slot for m in group.members.values() for slot in m.assigned | m.revoking]
        assert len(held) == len(set(held)), "two owners"
        assert group.image.owners == {
            slot: m.member_id for m in group.members.values() for slot in m.assigned | m.revoking
        }
        for member_id, member in group.members.items():
            if member.epoch > 0:
                assert member.epoch >= self.member_epochs.get(member_id, 0)
                self.member_epochs[member_id] = member.epoch
                assert member.epoch <= group.epoch
        known = [
            m for m in self.members if m.epoch > 0 and m.alive and m.member_id in group.members
        ]
        for member in known:
            there = group.members[member.member_id]
            assert member.owned <= there.assigned | there.revoking
        assert set(group.image.static.values()) <= set(group.members)

    def happen(self):
        rng, owner = self.rng, self.owner
        what = rng.random()
        alive = [m for m in self.members if m.alive]
        member = rng.choice(alive) if alive else None
        if what < 0.04 and len(alive) < 6:
            self.add(f"s{rng.randrange(3)}" if rng.random() < 0.3 else None)
        elif what < 0.05 and member:
            member.alive = False  # kill -9: it just stops
        elif what < 0.07 and member and member.epoch > 0 and member.token is None:
            epoch = -2 if member.instance_id and rng.random() < 0.7 else -1
            owner.send(member.member_id, epoch, instance_id=member.instance_id)
            member.alive = False
            if epoch == -2 and rng.random() < 0.7:
                self.add(member.instance_id)  # a restart
            self.after()
        elif what < 0.08:
            # Nothing that was acknowledged is lost; what was not may be.
            self.epochs, self.member_epochs = (0, 0), {}
            owner.restarted()
            self.after()
        elif what < 0.09:
            name = rng.choice(("clicks", "views"))
            self.partitions[name] = self.partitions.get(name, 0) + 1
            owner.set_topics(**self.partitions)
            self.after()
        elif what < 0.095 and len(self.partitions) > 1:
            del self.partitions["views"]
            owner.set_topics(**self.partitions)
            self.after()
        elif what < 0.2:
            owner.advance(rng.choice((10, 1000, 4000)))
            self.after()
        elif member:
            member.step()

    def calm_down(self):
        """No more faults: everybody who is alive goes on until all is quiet."""
        self.owner.hold = False
        self.loss = 0
        self.owner.after()
        for _ in range(300):
            for member in self.members:
                if member.alive:
                    member.step()
                    if member.token is not None:
                        member.look()
            self.owner.advance(500)
            self.check()
            if self.quiet():
                return
        raise AssertionError(f"the group does not settle: {list(self.owner.group.timeline)[-20:]}")

    def quiet(self):
        group = self.owner.group
        alive = [m for m in self.members if m.alive]
        if not alive:
            return group.state is GroupState.EMPTY
        return (
            group.state is GroupState.STABLE
            and set(group.members) == {m.member_id for m in alive}
            and all(m.owned == m.said == m.given and m.token is None for m in alive)
            and all(m.epoch == group.epoch for m in alive)
        )


@pytest.mark.parametrize("number", range(60))
def test_random_schedules(number):
    world = World(random.Random(f"{SEED} {number}"))
    for _ in range(600):
        world.happen()
    world.calm_down()
    group = world.owner.group
    alive = [m for m in world.members if m.alive]
    if alive:
        expected = frozenset().union(*(slots(t, *range(n)) for t, n in world.partitions.items()))
        owned = [slot for m in alive for slot in m.owned]
        assert sorted(owned) == sorted(expected)
        if group.assignor == "uniform":
            counts = [len(m.owned) for m in alive]
            assert max(counts) - min(counts) <= 1
    asked = next(world.owner._tokens)
    assert set(world.owner.answers) == set(range(asked))
    # The log says what the group is.
    before = {m: (x.epoch, x.assigned) for m, x in group.members.items()}
    again = world.owner.restarted()
    assert {m: (x.epoch, x.assigned) for m, x in again.members.items()} == before
    assert again.state in (GroupState.STABLE, GroupState.EMPTY)
