"""A classic group under random schedules: members that come, go, die, restart and are slow.

Each member behaves as clients do, but any of its steps may be late or never come, writes may
be slow or fail, and the coordinator may restart at any time.  What must hold:

- a group that is Stable or Empty is the replay of its last record, once that is written;
- no request is answered twice, and every parked one is answered in the end;
- the generation never goes back, a restart aside;
- when the group is Stable, every partition belongs to exactly one member;
- once the faults stop, the group becomes Stable with everybody who is alive.
"""

import os
import random

import pytest
from support.classic_group import Owner, assignment, request, subscription, what_records_say

from tidelog.coordinators.groups.classic_group import ClassicGroup
from tidelog.coordinators.groups.members import Sync
from tidelog.coordinators.groups.records import SERDE
from tidelog.coordinators.groups.states import GroupState
from tidelog.errors import ErrorCode
from tidelog.wire.consumer_protocol import assigned_partitions

SEED = int(os.environ.get("TIDELOG_SEED", "1"))
PARTITIONS = 12
REJOIN = {
    ErrorCode.REBALANCE_IN_PROGRESS,
    ErrorCode.ILLEGAL_GENERATION,
    ErrorCode.NOT_COORDINATOR,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
}


class SimulatedMember:
    """A consumer: it has at most one request under way, like a real one."""

    def __init__(self, world, instance_id=None):
        self.world = world
        self.instance_id = instance_id
        self.member_id = ""
        self.generation = -1
        self.token = None
        self.state = "joining"
        self.owned = None
        self.topics = ("clicks",)

    def step(self):
        """Do the next thing, if nothing is under way."""
        if self.token is not None:
            self.look()
        elif self.state == "joining":
            protocols = tuple((n, subscription(*self.topics)) for n in ("range", "sticky"))
            self.token = self.world.owner.token()
            join = request(self.member_id, self.instance_id, protocols=protocols)
            self.world.owner.group.join(join, self.token)
        elif self.state == "syncing":
            self.token = self.world.owner.token()
            sync = Sync(self.member_id, self.instance_id, self.generation, self.given)
            self.world.owner.group.sync(sync, self.token)
        elif self.state == "consuming":
            code = self.world.owner.group.heartbeat(
                self.member_id, self.instance_id, self.generation
            )
            self.failed(code)
        self.world.after()

    def look(self):
        result = self.world.owner.answers.get(self.token)
        if result is None:
            return
        self.token = None
        if result.error == ErrorCode.MEMBER_ID_REQUIRED:
            self.member_id = result.member_id
        elif result.error:
            self.failed(result.error)
        elif self.state == "joining":
            self.member_id, self.generation = result.member_id, result.generation
            self.state = "syncing"
            self.given = {}
            if result.members and not result.skip_assignment:
                ids = [row.member_id for row in result.members]
                self.given = {
                    member_id: assignment(*range(i, PARTITIONS, len(ids)))
                    for i, member_id in enumerate(ids)
                }
        else:
            self.owned = assigned_partitions(result.assignment)
            self.state = "consuming"

    def failed(self, code):
        if not code:
            return
        self.owned = None
        if code == ErrorCode.FENCED_INSTANCE_ID:
            self.state = "dead"
        elif code == ErrorCode.UNKNOWN_MEMBER_ID:
            self.member_id, self.state = "", "joining"
        else:
            assert code in REJOIN, code
            self.state = "joining"

    @property
    def alive(self):
        return self.state != "dead"


class World:
    """The members, the coordinator and what happens to them."""

    def __init__(self, rng):
        self.rng = rng
        self.owner = Owner(hold=True, initial_delay_ms=rng.choice((0, 3000)))
        self.members = []
        self.generation = 0
        self.statics = iter(range(10**6))
        self.log_speed = rng.choice((1, 0.5, 0.05))

    def after(self):
        owner = self.owner
        owner._take()
        # The log acknowledges now or later.
        while owner.in_flight and self.rng.random() < self.log_speed:
            failed, late = self.rng.random() < 0.03, self.rng.random() < 0.5
            owner.store(ErrorCode.NOT_COORDINATOR if failed else ErrorCode.NONE, late=late)
        self.check()

    def check(self):
        group, owner = self.owner.group, self.owner
        settled = group.state in (GroupState.STABLE, GroupState.EMPTY)
        if settled and not owner.in_flight and not owner.unwritten:
            # The state is the replay of the records.
            replayed = ClassicGroup("g", owner.limits, owner.clock)
            if owner.log:
                replayed.restore(SERDE.decode(*SERDE.encode(owner.log[-1])).value)
                assert what_records_say(replayed) == what_records_say(group)
            else:
                assert group.untouched or group.pending
        assert group.generation >= self.generation
        self.generation = group.generation
        waiting = sum(m.join_token is not None for m in group.members.values())
        assert group._rebalance.joined_count == waiting
        if group.state is GroupState.STABLE:
            owned = [
                row
                for member in group.members.values()
                for row in assigned_partitions(member.assignment)
            ]
            assert sorted(owned) == [("clicks", i) for i in range(PARTITIONS)]
        if group.state is GroupState.EMPTY:
            assert not group.members
        else:
            assert group.leader is None or group.leader in group.members
        assert set(group.image.static.values()) <= set(group.members)

    def some(self):
        alive = [m for m in self.members if m.alive]
        return self.rng.choice(alive) if alive else None

    def happen(self):
        rng, owner = self.rng, self.owner
        what = rng.random()
        member = self.some()
        if what < 0.05 and len([m for m in self.members if m.alive]) < 6:
            instance = f"s{next(self.statics)}" if rng.random() < 0.3 else None
            self.members.append(SimulatedMember(self, instance))
        elif what < 0.06 and member:
            member.state = "dead"  # kill -9: it just stops
        elif what < 0.07 and member and member.instance_id:
            # A static member restarts, or somebody else uses its instance id.
            self.members.append(SimulatedMember(self, member.instance_id))
            if rng.random() < 0.7:
                member.state = "dead"
        elif what < 0.08 and member and member.member_id:
            owner.group.leave(member.member_id, member.instance_id)
            member.state = "dead"
            self.after()
        elif what < 0.085:
            self.restart()
        elif what < 0.09 and member:
            member.topics = (*member.topics, f"more{rng.randrange(3)}")
            member.state = "joining" if member.token is None else member.state
        elif what < 0.2:
            self.advance(rng.choice((10, 1000, 4000)))
        elif member:
            member.step()

    def restart(self):
        owner = self.owner
        self.generation = 0
        owner.restarted()
        self.check()

    def advance(self, ms):
        self.owner.advance(ms)
        self.check()

    def calm_down(self):
        """No more faults: everybody who is alive goes on until all is quiet."""
        self.owner.hold = False
        for _ in range(600):
            self.owner.settle()
            for member in self.members:
                if member.alive:
                    member.step()
                    member.step()
            self.owner.settle()
            self.advance(500)
            if self.quiet():
                return
        raise AssertionError(f"the group does not settle: {list(self.owner.group.timeline)[-20:]}")

    def quiet(self):
        group = self.owner.group
        alive = [m for m in self.members if m.alive]
        if not alive:
            return group.state is GroupState.EMPTY and not group.members
        return (
            group.state is GroupState.STABLE
            and all(m.state == "consuming" and m.generation == group.generation for m in alive)
            and set(group.members) == {m.member_id for m in alive}
        )


@pytest.mark.parametrize("number", range(60))
def test_random_schedules(number):
    world = World(random.Random(f"{SEED} {number}"))
    for _ in range(600):
        world.happen()
    world.calm_down()
    # Everybody has what the group says it has, and nobody is left waiting.
    for member in world.members:
        if member.alive:
            held = world.owner.group.members[member.member_id]
            assert member.owned == assigned_partitions(held.assignment)
    asked = next(world.owner._tokens)
    assert set(world.owner.answers) == set(range(asked))
