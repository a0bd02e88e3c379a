"""Classic members in a consumer group, and groups that change from one protocol to the other."""

import pytest
from support import classic_group as classic_support
from support.classic_group import request, subscription
from support.consumer_group import Consumer, Owner, settle, slots

from tidelog.coordinators.groups.classic_group import ClassicGroup
from tidelog.coordinators.groups.consumer_members import MemberState
from tidelog.coordinators.groups.members import GroupLimits, Sync
from tidelog.coordinators.groups.migration import downgrade, upgrade
from tidelog.coordinators.groups.states import GroupState
from tidelog.errors import ApiError, ErrorCode
from tidelog.wire.consumer_protocol import (
    ConsumerProtocolSubscription,
    SubscribedPartitions,
    assigned_partitions,
    encode_consumer,
)

ALL = slots("clicks", 0, 1, 2, 3, 4, 5)


class ClassicConsumer:
    """A client of the classic protocol, eager or cooperative."""

    def __init__(self, owner, member_id="", instance_id=None, cooperative=False):
        self.owner, self.member_id, self.instance_id = owner, member_id, instance_id
        self.cooperative = cooperative
        self.generation = -1
        self.owned = set()
        self.rejoin = not member_id

    def ask(self, method, *args):
        token = self.owner.token()
        method(*args, token)
        self.owner.after()
        return self.owner.answers[token]

    def join(self):
        if not self.cooperative:
            self.owned = set()  # eager: everything is given up before
        rows = [SubscribedPartitions(topic=t, partitions=[i]) for t, i in sorted(self.owned)]
        said = ConsumerProtocolSubscription(topics=["clicks"], owned_partitions=rows)
        protocols = (("range", encode_consumer(said, 1)),)
        joined = self.ask(
            self.owner.group.join,
            request(self.member_id, self.instance_id, protocols=protocols),
        )
        if joined.error == ErrorCode.MEMBER_ID_REQUIRED:
            self.member_id = joined.member_id
            return self.join()
        assert joined.error == ErrorCode.NONE, joined
        assert joined.leader != joined.member_id  # nobody but the coordinator assigns
        self.member_id, self.generation = joined.member_id, joined.generation
        synced = self.ask(
            self.owner.group.sync, Sync(self.member_id, self.instance_id, self.generation)
        )
        if synced.error != ErrorCode.REBALANCE_IN_PROGRESS:
            assert synced.error == ErrorCode.NONE
            self.owned = set(assigned_partitions(synced.assignment))
            self.rejoin = False
        return joined

    def beat(self):
        if not self.rejoin:
            code = self.owner.group.heartbeat(self.member_id, self.instance_id, self.generation)
            self.owner.after()
            assert code in (ErrorCode.NONE, ErrorCode.REBALANCE_IN_PROGRESS), code
            self.rejoin = code == ErrorCode.REBALANCE_IN_PROGRESS
        if self.rejoin:
            self.join()

    @property
    def said(self):
        return self.owned if not self.rejoin else None

    @property
    def slots(self):
        return slots("clicks", *(index for _, index in self.owned))


def classic_group(*members, **options):
    """A stable classic group; member n has partition n."""
    owner = classic_support.Owner()
    owner.members_join(*(members or ({}, {})), **options)
    return owner


def upgraded(classic, **limits):
    owner = Owner(clock=classic.clock, **limits)
    owner.group = upgrade(
        classic.group, lambda _, timeline: owner.new_group(timeline), owner.metadata
    )
    owner.group.converted()
    return owner


# -- classic members in a consumer group -------------------------------------------


@pytest.mark.parametrize("cooperative", [False, True])
def test_both_kinds_of_members_share_the_partitions(cooperative):
    owner = Owner()
    new = Consumer(owner, "new", "clicks")
    settle(owner, new)
    old = ClassicConsumer(owner, cooperative=cooperative)
    settle(owner, new, old)
    assert new.owned | old.slots == ALL
    assert len(new.owned) == len(old.slots) == 3
    another = Consumer(owner, "another", "clicks")
    settle(owner, new, old, another)
    assert sorted(map(len, (new.owned, old.slots, another.owned))) == [2, 2, 2]
    assert owner.restarted().members[old.member_id].classic.protocols[0][0] == "range"
    settle(owner, new, old, another)


def test_a_cooperative_classic_member_keeps_what_it_can():
    owner = Owner()
    new, old = Consumer(owner, "new", "clicks"), ClassicConsumer(owner, cooperative=True)
    settle(owner, new, old)
    had = old.slots
    another = Consumer(owner, "another", "clicks")
    another.beat()
    old.beat()  # it is asked to join, says what it has, and is given less
    assert old.slots < had
    assert owner.group.members[old.member_id].state is MemberState.UNREVOKED
    settle(owner, new, old, another)
    assert old.slots < had


def test_a_classic_member_that_does_not_join_again_is_removed():
    owner = Owner()
    new, old = Consumer(owner, "new", "clicks"), ClassicConsumer(owner)
    settle(owner, new, old)
    another = Consumer(owner, "another", "clicks")
    for _ in range(14):
        owner.advance(5000)
        another.beat()
        new.beat()
        owner.group.heartbeat(old.member_id, None, old.generation)
    assert old.member_id not in owner.group.members
    settle(owner, new, another)
    assert new.owned | another.owned == ALL


def test_errors_for_classic_members():
    owner = Owner(max_size=2)
    new, old = Consumer(owner, "new", "clicks"), ClassicConsumer(owner)
    settle(owner, new, old)
    group = owner.group
    assert group.heartbeat("nobody", None, 1) == ErrorCode.UNKNOWN_MEMBER_ID
    assert group.heartbeat("new", None, new.epoch) == ErrorCode.UNKNOWN_MEMBER_ID
    assert group.heartbeat(old.member_id, None, 99) == ErrorCode.ILLEGAL_GENERATION
    lost = [("clicks", index) for _, index in new.owned]
    illegal = ErrorCode.ILLEGAL_GENERATION
    assert group.membership.may_commit(old.member_id, None, 99, []) == illegal
    assert group.membership.may_commit(old.member_id, None, old.generation - 1, lost) == illegal
    assert group.membership.may_commit(old.member_id, None, old.generation, lost) == ErrorCode.NONE
    assert owner.beat(old.member_id, old.generation).error == ErrorCode.FENCED_MEMBER_EPOCH

    def join(**changes):
        token = owner.token()
        group.join(request(**changes), token)
        owner.after()
        return owner.answers[token].error

    assert join() == ErrorCode.GROUP_MAX_SIZE_REACHED
    assert join(member_id=old.member_id, protocol_type="connect") == (
        ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    )
    assert join(member_id=old.member_id, protocols=(("range", b"?"),)) == (
        ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    )
    synced = old.ask(group.sync, Sync(old.member_id, None, 99))
    assert synced.error == ErrorCode.ILLEGAL_GENERATION
    assert group.leave(old.member_id) == ErrorCode.NONE
    owner.after()
    assert group.leave(old.member_id) == ErrorCode.UNKNOWN_MEMBER_ID
    settle(owner, new)
    assert new.owned == ALL


def test_static_members_change_the_protocol_in_their_place():
    owner = Owner()
    old = ClassicConsumer(owner, instance_id="one")
    other = Consumer(owner, "other", "clicks")
    settle(owner, old, other)
    had, epoch = old.slots, owner.group.epoch
    new = Consumer(owner, "new", "clicks", instance_id="one")
    new.beat()
    assert new.owned == had
    assert owner.group.epoch == epoch
    back = ClassicConsumer(owner, instance_id="one")
    back.join()
    assert back.slots == had
    assert new.beat().error == ErrorCode.FENCED_INSTANCE_ID
    settle(owner, back, other)


# -- upgrade and downgrade ---------------------------------------------------------


def test_upgrade():
    classic = classic_group({}, {"instance_id": "one"})
    ids, generation = list(classic.group.members), classic.group.generation
    owner = upgraded(classic)
    new = Consumer(owner, "new", "clicks")
    new.beat()
    group = owner.group
    assert group.epoch == generation + 1
    assert [group.members[i].epoch for i in ids] == [generation] * 2
    assert group.image.static == {"one": ids[1]}
    assert not group.downgrades
    old = []
    for place, (member_id, instance) in enumerate(zip(ids, (None, "one"), strict=True)):
        member = ClassicConsumer(owner, member_id, instance)
        member.generation, member.owned = generation, {("clicks", place)}
        old.append(member)
    settle(owner, new, *old)
    assert new.owned | old[0].slots | old[1].slots == ALL
    again = owner.restarted()
    assert set(again.members) == {"new", *ids}


def test_an_upgrade_writes_the_end_of_the_classic_group():
    owner = upgraded(classic_group())
    Consumer(owner, "new", "clicks").beat()
    tombstones = {row[0] for row in owner.log if row[1] is None}
    assert tombstones == {b"\x00\x02\x00\x01g"}  # GroupMetadata of the group "g"


@pytest.mark.parametrize(
    ("members", "limits", "why"),
    [
        ([{}], {"upgrade": False}, "group.consumer.migration.policy"),
        ([{}], {"max_size": 1}, "group.consumer.max.size"),
        ([{"protocol_type": "connect"}], {}, "no consumers"),
        ([{"protocols": (("range", b"?"),)}], {}, "no consumers"),
    ],
)
def test_a_group_that_cannot_be_upgraded(members, limits, why):
    classic = classic_support.Owner()
    for changes in members:
        classic.join(**changes)
    classic.advance(0)
    with pytest.raises(ApiError, match=why) as raised:
        upgraded(classic, **limits)
    assert raised.value.code == ErrorCode.GROUP_ID_NOT_FOUND


def test_downgrade_when_the_last_new_member_goes():
    owner = Owner()
    new, old = Consumer(owner, "new", "clicks"), ClassicConsumer(owner)
    third = ClassicConsumer(owner, instance_id="static")
    settle(owner, new, old, third)
    assert not owner.group.downgrades
    epoch = owner.group.epoch
    new.leave()
    assert owner.group.downgrades
    classic = downgrade(
        owner.group,
        lambda name, timeline: ClassicGroup(
            name, GroupLimits(), owner.clock, lambda: "x", timeline
        ),
    )
    assert classic.state is GroupState.PREPARING  # everybody joins again
    assert classic.generation == epoch
    assert set(classic.members) == {old.member_id, third.member_id}
    assert classic.image.static == {"static": third.member_id}
    for member in (old, third):
        held = assigned_partitions(classic.members[member.member_id].assignment)
        assert set(held) == member.owned
    assert [getattr(write.record.value, "generation", None) for write in classic.writes] == [epoch]
    assert classic.may_commit(old.member_id, None, epoch) == ErrorCode.NONE
    assert classic.heartbeat(old.member_id, None, epoch) == ErrorCode.REBALANCE_IN_PROGRESS


def test_no_downgrade_without_leave():
    owner = Owner(downgrade=False)
    new, old = Consumer(owner, "new", "clicks"), ClassicConsumer(owner)
    settle(owner, new, old)
    new.leave()
    assert not owner.group.downgrades
    settle(owner, old)
    assert old.slots == ALL


def test_a_subscription_is_what_the_others_agree_on():
    """A protocol that not all classic members know is refused."""
    owner = Owner()
    new, old = Consumer(owner, "new", "clicks"), ClassicConsumer(owner)
    settle(owner, new, old)
    token = owner.token()
    owner.group.join(request("x", protocols=(("sticky", subscription("clicks")),)), token)
    owner.after()
    assert owner.answers[token].error == ErrorCode.INCONSISTENT_GROUP_PROTOCOL
