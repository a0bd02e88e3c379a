"""The controller of three brokers, on a real (embedded) keeper: what it writes and publishes."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from support.controllers import with_controller

from tidelog.errors import ApiError, ErrorCode
from tidelog.keeper import paths
from tidelog.keeper.embedded import EmbeddedKeeper
from tidelog.keeper.keeper import BadVersion, ConnectionLost, Create, Set
from tidelog.new_topic import NewTopic


async def test_the_dead_and_the_returned(tmp_path: Path) -> None:
    async with with_controller(tmp_path) as cluster:
        await cluster.controller.create_topic(NewTopic("t", 3, 3))
        assert [row.leader for row in cluster.controller.metadata.topics["t"].partitions] == [
            1,
            2,
            3,
        ]
        await cluster.leave(1)
        await cluster.look()
        assert (cluster.row().leader, cluster.row().isr, cluster.row().leader_epoch) == (
            2,
            (2, 3),
            1,
        )
        assert await cluster.on_disk() == cluster.row()
        assert cluster.published[-1].brokers.keys() == {2, 3}
        await cluster.join(1)
        await cluster.look()
        assert cluster.row().isr == (2, 3), "it has to catch up first"
        assert await cluster.ask(2, (2, 3, 1)) == ErrorCode.NONE
        assert cluster.row().isr == (2, 3, 1)
        assert await cluster.on_disk() == cluster.row()
        results = await cluster.controller.elect_leaders([("t", 0)])
        assert results == {("t", 0): None}
        assert cluster.row().leader == 1


async def test_a_bounce_between_two_looks(tmp_path: Path) -> None:
    """Restarted so quickly that nobody saw it gone: it leads no longer."""
    async with with_controller(tmp_path) as cluster:
        await cluster.controller.create_topic(NewTopic("t", 1, 3))
        await cluster.leave(1)
        await cluster.join(1)
        await cluster.look()
        assert (cluster.row().leader, cluster.row().isr) == (2, (2, 3))


async def test_a_bounce_while_there_is_no_controller(tmp_path: Path) -> None:
    """The leader was the controller, too, and was back before another took cluster: it may have
    lost what was not on disk, and leads only if nobody else has everything."""
    async with with_controller(tmp_path) as cluster:
        await cluster.controller.create_topic(NewTopic("t", 1, 3))
        await cluster.leave(1)
        await cluster.join(1)
        await cluster.elect()
        assert (cluster.row().leader, cluster.row().isr) == (2, (2, 3))
        assert await cluster.ask(2, (2, 3, 1)) == ErrorCode.NONE
        for broker_id in (1, 2, 3):
            await cluster.leave(broker_id)
            await cluster.join(broker_id)
        await cluster.elect()
        assert (cluster.row().leader, cluster.row().isr) == (2, (2, 3, 1)), "all were restarted"


async def test_alone_and_back(tmp_path: Path) -> None:
    async with with_controller(tmp_path) as cluster:
        await cluster.controller.create_topic(NewTopic("t", 1, 2))
        await cluster.leave(2)
        await cluster.look()
        await cluster.leave(1)
        await cluster.look()
        assert (cluster.row().leader, cluster.row().isr) == (-1, (1,))
        await cluster.join(2)
        await cluster.look()
        assert cluster.row().leader == -1, "2 may lack something"
        await cluster.join(1)
        await cluster.look()
        assert cluster.row().leader == 1


async def test_unclean(tmp_path: Path) -> None:
    async with with_controller(tmp_path) as cluster:
        config = {"unclean.leader.election.enable": "true"}
        await cluster.controller.create_topic(NewTopic("t", 1, 2, config=config))
        await cluster.leave(2)
        await cluster.look()
        await cluster.join(2)
        await cluster.look()
        await cluster.leave(1)
        await cluster.look()
        assert (cluster.row().leader, cluster.row().isr) == (2, (2,))


async def test_unclean_from_now_on(tmp_path: Path) -> None:
    """Nobody leads, and somebody would rather lose records than wait."""
    async with with_controller(tmp_path) as cluster:
        await cluster.controller.create_topic(NewTopic("t", 1, 2))
        await cluster.leave(2)
        await cluster.look()
        await cluster.join(2)
        await cluster.leave(1)
        await cluster.look()
        assert cluster.row().leader == -1
        await cluster.controller.topic_config_changed("t", {"retention.ms": "5"})
        assert cluster.row().leader == -1
        config = {"unclean.leader.election.enable": "true"}
        await cluster.controller.topic_config_changed("t", config)
        assert (cluster.row().leader, cluster.row().isr) == (2, (2,))
        assert await cluster.on_disk() == cluster.row()


async def test_what_leaders_may_not_ask(tmp_path: Path) -> None:
    async with with_controller(tmp_path) as cluster:
        await cluster.controller.create_topic(NewTopic("t", 1, 3))
        assert await cluster.ask(2, (2, 3)) == ErrorCode.FENCED_LEADER_EPOCH
        assert await cluster.ask(1, (1, 2), partition_epoch=7) == ErrorCode.INVALID_UPDATE_VERSION
        assert await cluster.ask(1, (2, 3)) == ErrorCode.INVALID_REQUEST
        assert await cluster.ask(1, (1, 9)) == ErrorCode.INVALID_REQUEST
        assert await cluster.ask(1, (1, 2), leader_epoch=5) == ErrorCode.NOT_CONTROLLER
        assert cluster.row().isr == (1, 2, 3)
        with pytest.raises(ApiError) as error:
            await cluster.controller.alter_partitions(1, 12345, [])
        assert error.value.code == ErrorCode.STALE_BROKER_EPOCH
        await cluster.leave(3)
        await cluster.look()
        assert await cluster.ask(1, (1, 2, 3)) == ErrorCode.INELIGIBLE_REPLICA


async def test_restarted_since_it_was_in_sync(tmp_path: Path) -> None:
    """KIP-903: the leader says in which life of a follower it had everything."""
    async with with_controller(tmp_path) as cluster:
        await cluster.controller.create_topic(NewTopic("t", 1, 3))
        before = {b: info.epoch for b, info in cluster.controller.metadata.brokers.items()}
        await cluster.leave(3)
        await cluster.look()
        await cluster.join(3)
        await cluster.look()
        now = {b: info.epoch for b, info in cluster.controller.metadata.brokers.items()}
        assert before != now
        assert await cluster.ask(1, (1, 2, 3), before) == ErrorCode.INELIGIBLE_REPLICA
        assert cluster.row().isr == (1, 2)
        # Who is in sync already needs no proof: the controller drops who is restarted.
        assert await cluster.ask(1, (1, 2, 3), {**now, 2: -1}) == ErrorCode.NONE
        assert cluster.row().isr == (1, 2, 3)
        assert await cluster.ask(1, (1, 2), before) == ErrorCode.NONE
        for unknown in ({}, {3: -1}):
            assert await cluster.ask(1, (1, 2, 3), unknown) == ErrorCode.INELIGIBLE_REPLICA
        assert await cluster.ask(1, (1, 2, 2)) == ErrorCode.INVALID_REQUEST, "one is named twice"
        assert cluster.row().isr == (1, 2)


async def test_controlled_shutdown(tmp_path: Path) -> None:
    async with with_controller(tmp_path) as cluster:
        await cluster.controller.create_topic(NewTopic("t", 3, 2))
        await cluster.controller.create_topic(NewTopic("alone", assignment=[[1]]))
        epoch = cluster.controller.metadata.brokers[1].epoch
        assert await cluster.controller.controlled_shutdown(1, epoch) == []
        for topic in cluster.controller.metadata.topics["t"].partitions:
            assert topic.leader != 1
            assert 1 not in topic.isr
        assert cluster.row("alone").leader == 1
        assert cluster.row().replicas == (1, 2)
        assert await cluster.ask(2, (2, 1)) == ErrorCode.INELIGIBLE_REPLICA
        (problem,) = (await cluster.controller.elect_leaders([("t", 0)])).values()
        assert problem is not None
        assert problem.code == ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE
        await cluster.leave(1)
        await cluster.join(1)
        await cluster.look()
        assert await cluster.ask(2, (2, 1)) == ErrorCode.NONE, "it is another one now"


async def test_a_move(tmp_path: Path) -> None:
    async with with_controller(tmp_path) as cluster:
        await cluster.controller.create_topic(NewTopic("t", 1, 2))
        assert cluster.row().replicas == (1, 2)
        results = await cluster.controller.reassign({("t", 0): (3, 2), ("gone", 0): (1,)})
        assert results["t", 0] is None
        assert results["gone", 0] is not None
        assert (cluster.row().replicas, cluster.row().adding, cluster.row().removing) == (
            (3, 2, 1),
            (3,),
            (1,),
        )
        assert await cluster.on_disk() == cluster.row()
        await cluster.elect()  # a new controller goes on
        assert cluster.row().adding == (3,)
        assert await cluster.ask(1, (1, 2, 3)) == ErrorCode.NONE
        assert (cluster.row().replicas, cluster.row().isr) == ((3, 2), (2, 3))
        assert cluster.row().leader == 3
        assert await cluster.on_disk() == cluster.row()
        await cluster.controller.reassign({("t", 0): (1, 2)})
        results = await cluster.controller.reassign({("t", 0): None})
        assert results["t", 0] is None
        assert sorted(cluster.row().replicas) == [2, 3]
        assert (cluster.row().adding, cluster.row().removing) == ((), ())


async def test_a_move_is_changed_while_its_new_replica_leads(tmp_path: Path) -> None:
    """3 is in sync and leads, and is not wanted any more: another leads before it goes."""
    async with with_controller(tmp_path, brokers=4) as cluster:
        await cluster.controller.create_topic(NewTopic("t", assignment=[[1, 2]]))
        await cluster.controller.reassign({("t", 0): (3, 4)})
        assert await cluster.ask(1, (1, 2, 3)) == ErrorCode.NONE
        await cluster.controller.elect_leaders([("t", 0)])
        assert cluster.row().leader == 3
        await cluster.controller.reassign({("t", 0): (4, 2)})
        row = cluster.row()
        assert row.replicas == (4, 2, 1)
        assert row.isr == (1, 2)
        assert row.leader == 2
        assert await cluster.on_disk() == row


@pytest.mark.parametrize("wanted", [None, (2, 4)])
async def test_the_only_good_replica_is_not_given_up(
    tmp_path: Path, wanted: tuple[int, ...] | None
) -> None:
    """1 and 2 have died; 3, to which they were moved, has everything: it stays."""
    async with with_controller(tmp_path, brokers=4) as cluster:
        await cluster.controller.create_topic(NewTopic("t", assignment=[[1, 2]]))
        await cluster.controller.reassign({("t", 0): (3, 4)})
        assert await cluster.ask(1, (1, 2, 3)) == ErrorCode.NONE
        for broker_id in (1, 2):
            await cluster.leave(broker_id)
            await cluster.look()
        before = cluster.row()
        assert (before.leader, before.isr) == (3, (3,))
        (problem,) = (await cluster.controller.reassign({("t", 0): wanted})).values()
        assert problem is not None
        assert problem.code == ErrorCode.INVALID_REPLICA_ASSIGNMENT
        assert "none is alive and in sync" in problem.message
        assert cluster.row() == before


async def test_a_controller_that_was_replaced(tmp_path: Path) -> None:
    """Whatever it decides, nothing is written."""
    async with with_controller(tmp_path) as cluster:
        await cluster.controller.create_topic(NewTopic("t", 1, 3))
        old = cluster.controller
        await cluster.elect()
        for attempt in (
            old.create_topic(NewTopic("u", 1, 1)),
            old.delete_topic("t"),
            old.create_partitions("t", 5),
        ):
            with pytest.raises(BadVersion):
                await attempt
        await old.elect_leaders(None, unclean=True)  # nothing to do, so nothing to write
        assert await cluster.registry.topic("u") is None
        assert (await cluster.on_disk()).leader == 1


async def test_a_topic_whose_partitions_were_not_written(tmp_path: Path) -> None:
    """The controller died in the middle: the next one makes them."""
    async with with_controller(tmp_path) as cluster:
        topic_id = "AAAAAAAAAAAAAAAAAAAAAQ"
        value = paths.topic_value(topic_id, [[1, 2], [2, 3]])
        state = paths.state_value(1, 0, [1, 2], 1)
        await cluster.keeper.multi(
            [Create(paths.topic("t"), value), Create(paths.partition_state("t", 0), state)]
        )
        await cluster.elect()
        assert (cluster.row("t", 1).leader, cluster.row("t", 1).isr) == (2, (2, 3))
        assert await cluster.on_disk("t", 1) == cluster.row("t", 1)


async def test_many_partitions(tmp_path: Path) -> None:
    async with with_controller(tmp_path) as cluster:
        await cluster.controller.create_topic(NewTopic("t", 1200, 3))
        topic = await cluster.registry.topic("t")
        assert topic == cluster.controller.metadata.topics["t"]
        await cluster.leave(2)
        await cluster.look()
        assert all(row.leader != 2 for row in cluster.controller.metadata.topics["t"].partitions)
        assert await cluster.registry.topic("t") == cluster.controller.metadata.topics["t"]
        await cluster.join(2)
        await cluster.look()
        await cluster.controller.create_partitions("t", 2000)
        assert await cluster.registry.topic("t") == cluster.controller.metadata.topics["t"]
        await cluster.controller.delete_topic("t")
        assert await cluster.keeper.children(paths.TOPICS) == []


async def test_settings_that_others_change(tmp_path: Path) -> None:
    async with with_controller(tmp_path) as cluster:
        await cluster.controller.create_topic(NewTopic("t", 1, 1))
        before = await cluster.registry.config_changes("")
        path = paths.topic_config("t")
        await cluster.registry.write_config(path, {"retention.ms": "5"})
        changes = await cluster.registry.config_changes(max(before, default=""))
        assert list(changes.values()) == ["topics/t"]
        assert await cluster.registry.config(path) == {"retention.ms": "5"}
        await cluster.keeper.multi([Set(path, b"")])
        assert await cluster.registry.config(path) == {}


class Counting:
    """A keeper that counts transactions, and fails when told to."""

    def __init__(self, keeper: EmbeddedKeeper) -> None:
        self._keeper = keeper
        self.transactions = 0
        self.fail_after: int | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._keeper, name)

    async def multi(self, operations: Any) -> list[str]:
        if self.fail_after is not None and self.transactions >= self.fail_after:
            raise ConnectionLost("gone")
        self.transactions += 1
        return await self._keeper.multi(operations)


async def test_many_topics_are_few_transactions(tmp_path: Path) -> None:
    async with with_controller(tmp_path) as cluster:
        counting = Counting(cluster.keeper)
        cluster.controller._store._keeper = counting
        names = [f"t{i}" for i in range(300)]
        made = [cluster.controller.create_topic(NewTopic(name, 2, 3)) for name in names]
        refused = [
            cluster.controller.create_topic(NewTopic(name, 2, 3)) for name in ("t1", "no/name")
        ]
        answers = await asyncio.gather(*made, *refused, return_exceptions=True)
        assert [type(a) for a in answers[300:]] == [ApiError, ApiError]
        assert counting.transactions < 10
        assert len(cluster.published) == 1
        assert await cluster.registry.topics() == cluster.controller.metadata.topics
        assert len(cluster.controller.metadata.topics) == 300
        counting.transactions = 0
        gone = [cluster.controller.delete_topic(name) for name in [*names[:200], "t1"]]
        answers = await asyncio.gather(*gone, return_exceptions=True)
        assert [type(a) for a in answers] == [type(None)] * 200 + [ApiError]
        assert counting.transactions < 10
        assert sorted(await cluster.registry.topics()) == sorted(names[200:])
        assert await cluster.controller._store.deletion_marks() == set()


@pytest.mark.parametrize("after", [1, 2, 3, 4])
async def test_the_next_controller_finishes_a_deletion(tmp_path: Path, after: int) -> None:
    """The znodes of a large topic are more than one transaction takes."""
    async with with_controller(tmp_path) as cluster:
        await cluster.controller.create_topic(
            NewTopic("large", 1200, 1, config={"retention.ms": "5"})
        )
        await cluster.controller.create_topic(NewTopic("small", 1, 1))
        counting = Counting(cluster.keeper)
        counting.fail_after = after
        cluster.controller._store._keeper = counting
        with pytest.raises(ConnectionLost):
            await cluster.controller.delete_topic("large")
        await cluster.elect()
        assert list(cluster.controller.metadata.topics) == ["small"]
        assert list(await cluster.registry.topics()) == ["small"]
        assert not await cluster.keeper.exists(paths.topic_config("large"))
        assert await cluster.controller._store.deletion_marks() == set()
        await cluster.controller.create_topic(NewTopic("large", 3, 1))


async def test_offsets_get_their_replicas_when_brokers_come(tmp_path: Path) -> None:
    """Made by a consumer that was there before the other brokers; they come during the move."""
    async with with_controller(tmp_path, brokers=1) as cluster:
        await cluster.controller.create_topic(NewTopic("__consumer_offsets", 4, 1))
        await cluster.controller.create_topic(NewTopic("t", 4, 1))
        for broker_id in (2, 3, 4):
            await cluster.join(broker_id)
            await cluster.look()
        rows = cluster.controller.metadata.topics["__consumer_offsets"].partitions
        assert all(len(row.replicas) == 3 and 1 in row.replicas for row in rows)
        assert all(row.isr == (1,) and row.leader == 1 for row in rows)
        assert len({row.replicas[0] for row in rows}) == 3, "leaders will be spread"
        assert len(cluster.row().replicas) == 1, "other topics are left alone"
        assert await cluster.on_disk("__consumer_offsets", 2) == rows[2]


async def test_a_leader_that_cannot_write(tmp_path: Path) -> None:
    """Another that is in sync leads.  It is neither in sync nor preferred until it can write."""
    async with with_controller(tmp_path) as cluster:
        controller, key = cluster.controller, ("t", 0)
        await controller.create_topic(NewTopic("t", assignment=[[1, 2, 3]]))
        sick = controller.metadata.brokers[1]
        assert controller.is_storage_news(sick, {key}, set())
        await controller.storage_changed(sick, {key}, set())
        assert (cluster.row().leader, cluster.row().isr) == (2, (2, 3))
        assert not controller.is_storage_news(sick, {key}, set()), "it is known by now"
        assert await cluster.ask(2, (2, 3, 1)) == ErrorCode.INELIGIBLE_REPLICA
        await controller.storage_changed(sick, set(), {key})
        assert await cluster.ask(2, (2, 3, 1)) == ErrorCode.NONE
        assert await controller.elect_leaders([key]) == {key: None}
        assert cluster.row().leader == 1


async def test_nobody_can_write(tmp_path: Path) -> None:
    """The last one in sync keeps the lead, and gives it to the first that can write again."""
    async with with_controller(tmp_path) as cluster:
        controller, key = cluster.controller, ("t", 0)
        brokers = controller.metadata.brokers
        await controller.create_topic(NewTopic("t", assignment=[[1, 2]]))
        await controller.storage_changed(brokers[1], {key, ("gone", 0), ("t", 9)}, set())
        await controller.storage_changed(brokers[2], {key}, set())
        assert (cluster.row().leader, cluster.row().isr) == (2, (2,))
        await controller.storage_changed(brokers[1], set(), {key})
        assert await cluster.ask(2, (2, 1)) == ErrorCode.NONE
        assert (cluster.row().leader, cluster.row().isr) == (1, (1,))
        await cluster.leave(2)
        await cluster.look()
        await cluster.join(2)
        await cluster.look()
        assert await cluster.ask(1, (1, 2)) == ErrorCode.NONE, "a restart is a new beginning"


async def test_notes_of_log_directories(tmp_path: Path) -> None:
    async with with_controller(tmp_path) as cluster:
        for broker_id in (2, 3, 2):
            await cluster.registry.notify_log_dir_event(broker_id)
        brokers, notes = await cluster.registry.log_dir_events(lambda: None)
        assert (brokers, len(notes)) == ({2, 3}, 3)
        await cluster.controller.remove_log_dir_events(notes)
        assert await cluster.registry.log_dir_events(lambda: None) == (set(), [])


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"not JSON",
        b"\xff\xfe",
        b"[1]",
        b'{"version":5,"endpoints":[]}',
        b'{"version":5,"host":null,"port":-1,"endpoints":["SSL://a:9093"]}',
        b'{"version":5,"host":"a","port":"9092"}',
        b'{"version":5,"host":"a","port":9092,"rack":7}',
    ],
)
async def test_a_broker_that_cannot_be_read(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, data: bytes
) -> None:
    """It counts as absent, which is said once, and the controller goes on."""
    async with with_controller(tmp_path) as cluster:
        await cluster.controller.create_topic(NewTopic("t", 1, 3))
        await cluster.keeper.multi([Set(paths.broker(1), data)])
        await cluster.look()
        assert (cluster.row().leader, cluster.row().isr) == (2, (2, 3))
        await cluster.leave(3)
        await cluster.look()
        assert cluster.row().isr == (2,)
        assert caplog.text.count(f"{paths.broker(1)} makes no sense: ") == 1
        assert "this broker counts as absent" in caplog.text
        await cluster.elect()
        assert cluster.controller.metadata.brokers.keys() == {2}
        await cluster.leave(1)
        await cluster.join(1)
        await cluster.look()
        assert cluster.controller.metadata.brokers.keys() == {1, 2}


async def test_what_is_no_broker_among_the_brokers(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with with_controller(tmp_path) as cluster:
        sound, _ = await cluster.keeper.get(paths.broker(1))
        await cluster.keeper.multi([Create(f"{paths.BROKER_IDS}/one", sound)])
        await cluster.look()
        assert cluster.controller.metadata.brokers.keys() == {1, 2, 3}
        assert "/brokers/ids/one makes no sense" in caplog.text


@pytest.mark.parametrize(
    ("path", "data"),
    [
        (paths.topic("bad"), b"{"),
        (paths.topic("bad"), b""),
        (paths.topic("bad"), b"\xff\xfe"),
        (paths.topic("bad"), b'{"version":3,"topic_id":"short","partitions":{"0":[1]}}'),
        (paths.topic("bad"), b'{"version":1,"partitions":{"0":[1,2]}}'),
        (paths.topic("bad"), paths.topic_value("A" * 22, [])),
        (paths.topic("bad"), paths.topic_value("A" * 22, [[1, 2], []])),
        (paths.topic("bad"), paths.topic_value("A" * 22, [[1]]).replace(b'"0"', b'"7"')),
        (paths.topic("bad"), paths.topic_value("A" * 22, [["one"]])),  # type: ignore[list-item]
        (paths.partition_state("bad", 1), b"null"),
        (paths.partition_state("bad", 1), b'{"leader":1,"leader_epoch":0,"isr":"1,2"}'),
    ],
)
async def test_a_topic_that_cannot_be_read(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, path: str, data: bytes
) -> None:
    """It is left out, and the others are served."""
    async with with_controller(tmp_path) as cluster:
        for name in ("bad", "good"):
            await cluster.controller.create_topic(NewTopic(name, 2, 3))
        sound, _ = await cluster.keeper.get(path)
        await cluster.keeper.multi([Set(path, data)])
        await cluster.elect()
        assert cluster.controller.metadata.topics.keys() == {"good"}
        assert f"{path} makes no sense: " in caplog.text
        assert "topic bad is left out" in caplog.text
        with pytest.raises(ApiError, match="'bad' cannot be read"):
            await cluster.controller.create_topic(NewTopic("bad", 1, 1))
        await cluster.keeper.multi([Set(path, sound)])
        await cluster.elect()
        assert cluster.controller.metadata.topics.keys() == {"good", "bad"}


@pytest.mark.parametrize(
    ("data", "read"),
    [
        (b"[1]", {"retention.ms": "-1", "retention.bytes": "-1"}),
        (b'{"version":1,"config":{"retention.ms":5}}', {"retention.ms": "-1"}),
        (
            b'{"version":1,"config":{"segment.bytes":"99999","retention.ms":"soon"}}',
            {"segment.bytes": "99999", "retention.ms": "-1"},
        ),
        (b'{"version":1,"config":{"of.the.future":"1","retention.ms":"7"}}', {"retention.ms": "7"}),
    ],
)
async def test_settings_of_a_topic_that_make_no_sense(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, data: bytes, read: dict[str, str]
) -> None:
    """Nothing is deleted by mistake; what somebody's later version may have does not matter."""
    async with with_controller(tmp_path) as cluster:
        config = {"retention.ms": "1"}
        await cluster.controller.create_topic(NewTopic("t", 1, 1, config=config))
        await cluster.keeper.multi([Set(paths.topic_config("t"), data)])
        await cluster.elect()
        found = cluster.controller.metadata.topics["t"].config
        assert {name: found[name] for name in read} == read
        assert "of.the.future" not in found
        assert paths.topic_config("t") in caplog.text


async def test_notes_that_make_no_sense(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with with_controller(tmp_path) as cluster:
        old = b'{"version":1,"entity_type":"topics","entity_name":"old"}'
        for data in (b"", b"7", b'{"version":2}', old):
            await cluster.keeper.multi([Create(paths.CONFIG_CHANGE, data, sequential=True)])
        for data in (b"{", b'{"broker":"x"}', b'{"version":1,"broker":3,"event":1}'):
            await cluster.keeper.multi([Create(paths.LOG_DIR_EVENT, data, sequential=True)])
        changes = await cluster.registry.config_changes("")
        assert list(changes.values()) == ["topics/old"]
        assert (await cluster.registry.log_dir_events(lambda: None))[0] == {3}
        assert caplog.text.count("makes no sense") == 5
