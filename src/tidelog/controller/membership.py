"""This broker as a member of a cluster: registered in ZooKeeper, and maybe its controller.

Five loops run as long as the broker does, each of the same form: read with a watch, act on
what is there, wait for the watch.

``_contend``         is there a controller?  If not, become it.  After an expired session the
                     broker first registers again, or stops if another has its id by now.
``_watch_brokers``   (in office) who is there; the controller decides what follows from it
``_watch_disks``     (in office) brokers that say that a log directory has failed, or works again
``_watch_configs``   settings that somebody has changed
``_watch_epochs``    the registrations of all brokers: whose fetches count as a follower's

When a write of the controller fails because another is in office, or because nobody knows
whether it has happened, we step down: the next controller, which may be us, reads everything
again.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from tidelog import workers
from tidelog.broker.controller_requests import Orders
from tidelog.controller.cluster_controller import ClusterController
from tidelog.controller.failure_detector import watch_over
from tidelog.controller.partition_states import Key
from tidelog.controller.propagation import Propagation
from tidelog.errors import ApiError, ErrorCode, SettingError
from tidelog.keeper import paths
from tidelog.keeper.keeper import (
    BadVersion,
    Delete,
    Keeper,
    KeeperError,
    NodeExists,
    NoNode,
    SessionEvent,
    Stat,
    Unreachable,
    Watch,
)
from tidelog.keeper.registry import CHANGE_LIVES_MS, Registry, patiently
from tidelog.keeper.znodes import Unreadable
from tidelog.metadata import BrokerInfo
from tidelog.ports import answers

if TYPE_CHECKING:
    from tidelog.broker.broker import Broker

log = logging.getLogger(__name__)

T = TypeVar("T")
_RETRY_SECONDS = 0.2
_AFTER_BUG_SECONDS = 1.0
_RETIRE_SECONDS = 2.0
_END_SECONDS = 2.0  # until a session that is over has no znodes any more


class IdTaken(SettingError):
    """Another broker is registered under our id."""


class Membership:
    """See the module."""

    def __init__(self, broker: Broker, keeper: Keeper) -> None:
        self._broker = broker
        self._keeper = keeper
        self._settings = broker.settings
        self.registry = Registry(keeper, broker.clock)
        self.orders = Orders(broker, self.registry)
        self.controller: ClusterController | None = None  # while we are in office
        self._propagation: Propagation | None = None
        self._office_tasks: list[asyncio.Task[None]] = []
        self._look_again = asyncio.Event()
        self._connected = asyncio.Event()
        self._connected.set()
        self._registered = False
        self._joined = False
        self._contention: asyncio.Task[None] | None = None
        self._last_change = ""
        self._live_epochs: dict[int, int] = {}
        self._vigils: dict[tuple[int, int], asyncio.Task[None]] = {}  # broker, its epoch

    # -- joining ----------------------------------------------------------------

    async def prepare(self) -> None:
        """What is needed before the logs are opened: paths and settings."""
        await self.registry.make_paths()
        self._last_change = max(await self._keeper.children(paths.CONFIG_CHANGES), default="")
        self.orders.topic_configs = await self.registry.topic_configs()

    async def join(self) -> None:
        """Register, and wait until a controller has told us what there is."""
        self._keeper.on_session(self._session_changed)
        await patiently(self._register)
        self._joined = True
        self._contention = self._broker.spawn(self._contend())
        self._broker.spawn(self._watch_configs())
        self._broker.spawn(self._watch_epochs())
        self._broker.spawn(self._broker.replicas.log_dirs.watch(self._tell_of_disks))
        informed = asyncio.ensure_future(self.orders.informed.wait())
        failed = asyncio.ensure_future(self._broker.stopped())
        try:
            await asyncio.wait({informed, failed}, return_when=asyncio.FIRST_COMPLETED)
            if failed.done():
                await failed
        finally:
            informed.cancel()
            failed.cancel()

    async def _register(self) -> None:
        """Be registered.  Whoever takes our registration away wakes us to look again."""
        info = self._broker.own_info()
        while True:
            gone = asyncio.Event()

            def changed(gone: asyncio.Event = gone) -> None:
                gone.set()
                self._look_again.set()

            try:
                found = await self.registry.registration(info.broker_id, changed)
            except Unreadable as error:
                await self._put_right(info.broker_id, error)
                continue
            if found is None:
                try:
                    epoch = await self.registry.register(info)
                except (SettingError, NoNode):
                    continue  # somebody was faster: look who it is; or it is gone again
                self.orders.registered(epoch)
                self._registered = True
                continue  # once more, for the watch
            other, stat = found
            if stat.own:
                self.orders.registered(stat.czxid)
                self._registered = True
                return
            await self._make_way(info, other, stat, gone)

    async def _put_right(self, broker_id: int, error: Unreadable) -> None:
        """What stands in place of our registration makes no sense."""
        stat = await self._keeper.exists(paths.broker(broker_id))
        if stat is None:
            return
        if not stat.own:
            raise SettingError(
                f"broker.id={broker_id}: {error}; if no such broker is running, delete this znode"
            )
        log.warning("%s; it was ours: registering again", error)
        with contextlib.suppress(NoNode, BadVersion):
            await self.registry.forget(broker_id, stat)

    async def _make_way(
        self, info: BrokerInfo, other: BrokerInfo, stat: Stat, gone: asyncio.Event
    ) -> None:
        """There is a broker with our id.  Ours, from before a crash, or a stranger?"""
        refusal = (
            f"broker.id={info.broker_id}: a broker with this id is running already, on "
            f"{other.host}:{other.port}; give this one another broker.id"
        )
        same_address = (other.host, other.port) == (info.host, info.port)
        if self._joined and same_address:
            # Of our session that has ended, and about to go; or of another process that took our
            # place, at the address that we advertise.
            await self._keeper.sync()
            try:
                await asyncio.wait_for(gone.wait(), _END_SECONDS)
            except TimeoutError:
                if stat.czxid != self.orders.broker_epoch:
                    raise IdTaken(refusal) from None
            return
        if same_address:
            # The port is ours now, so whoever had it is dead; its session is not over yet.
            with contextlib.suppress(NoNode, BadVersion):
                await self.registry.forget(info.broker_id, stat)
            await self._forget_old_office(info.broker_id)
            return
        # If we were registered ourselves, it has taken our id since; what we led it leads.
        if self._joined or await workers.run(answers, other.host or "localhost", other.port):
            raise IdTaken(refusal)
        timeout = self._settings["zookeeper.session.timeout.ms"] / 1000
        log.info("waiting for the session of an earlier broker %d to end", info.broker_id)
        try:
            await asyncio.wait_for(gone.wait(), timeout * 1.5)
        except TimeoutError:
            raise IdTaken(refusal) from None

    async def _forget_old_office(self, broker_id: int) -> None:
        """If it was controller too, nobody need wait for the end of its session."""
        with contextlib.suppress(NoNode, BadVersion):
            data, stat = await self._keeper.get(paths.CONTROLLER)
            if paths.from_json(data)["brokerid"] == broker_id and not stat.own:
                await self._keeper.multi([Delete(paths.CONTROLLER, stat.version)])

    def _session_changed(self, event: SessionEvent) -> None:
        if event is SessionEvent.CONNECTED:
            self._connected.set()
            if not self._registered:
                log.info("a new session with ZooKeeper")
        else:
            self._connected.clear()
            if event is SessionEvent.EXPIRED:
                log.warning("the session with ZooKeeper has expired: joining the cluster again")
                self._registered = False
                self._resign()
        self._look_again.set()

    # -- the office -------------------------------------------------------------

    async def _contend(self) -> None:
        complaint = ""
        while True:
            self._look_again.clear()
            try:
                await self._connected.wait()
                await self._register()
                holder = await self._controller_now()
                if holder is None:
                    self._resign()
                    await self._take_office()
                    continue
                if holder.own and self.controller is None:
                    # We took it without learning of it: nobody governs.  Begin anew.
                    await self._keeper.multi([Delete(paths.CONTROLLER)])
                    continue
                if not holder.own:
                    self._resign()
                    await self._watch_over_controller()
            except (NodeExists, BadVersion, NoNode, Unreachable):
                continue
            except IdTaken as error:
                self._resign()
                self._broker.fail(error)
                return
            except SettingError as error:  # a znode that an operator has to delete
                if str(error) != complaint:
                    complaint = str(error)
                    log.error("%s", complaint)
                await asyncio.sleep(_RETRY_SECONDS)
                continue
            except KeeperError as error:
                log.warning("ZooKeeper: %s (%s)", error, type(error).__name__)
                self._resign()
                await asyncio.sleep(_RETRY_SECONDS)
                continue
            except Exception:
                # A znode that makes no sense, or a bug of ours; another broker may do better.
                log.exception("cannot be controller")
                self._resign()
                await self._leave_office()
                await asyncio.sleep(_AFTER_BUG_SECONDS)
                continue
            await self._look_again.wait()

    async def _controller_now(self) -> Stat | None:
        try:
            _, stat = await self._keeper.get(paths.CONTROLLER, self._look_again.set)
        except NoNode:
            return None
        return stat

    async def _take_office(self) -> None:
        broker = self._broker
        propagation = Propagation(broker, self.orders.apply)
        controller = ClusterController(
            self._keeper, self._settings, broker.clock, propagation.publish
        )
        await controller.take_office(broker.broker_id)
        log.info("controller, epoch %d", controller.epoch)
        propagation.epoch = controller.epoch
        try:
            await controller.load(broker.metadata.cluster_id, broker.broker_id)
        except BaseException:
            propagation.close()
            raise
        self.controller, self._propagation = controller, propagation
        propagation.storage_told = self._storage_told
        propagation.publish(controller.metadata)
        self._office_tasks = [
            broker.spawn(self._watch_brokers(controller)),
            broker.spawn(self._watch_disks(controller, propagation)),
            broker.spawn(self._keep_balance(controller)),
            broker.spawn(self._sweep_changes()),
        ]

    async def _leave_office(self) -> None:
        """Give the office back, if it is ours."""
        with contextlib.suppress(KeeperError):
            stat = await self._keeper.exists(paths.CONTROLLER)
            if stat is not None and stat.own:
                await self._keeper.multi([Delete(paths.CONTROLLER)])

    def _resign(self) -> None:
        if self.controller is None:
            return
        log.info("no longer controller (epoch %d)", self.controller.epoch)
        self.controller = None
        for task in self._office_tasks:
            task.cancel()
        self._office_tasks = []
        self._watch_over({})
        if self._propagation is not None:
            self._propagation.close()
            self._propagation = None

    def step_down(self) -> None:
        """What we know may be wrong: whoever is elected next reads everything again."""
        self._resign()
        self._look_again.set()

    async def reachable(self) -> None:
        """Can anything be decided now?  ApiError for whoever has asked for it, if not."""
        try:
            await self._keeper.reachable()
        except Unreachable as error:
            raise ApiError(ErrorCode.REQUEST_TIMED_OUT, str(error)) from error

    async def in_office(self) -> ClusterController:
        """The controller, which must be on this broker."""
        if self.controller is None:
            await self.reachable()  # without ZooKeeper there may be none anywhere
            raise ApiError(ErrorCode.NOT_CONTROLLER)
        return self.controller

    async def govern(self, work: Coroutine[Any, Any, T]) -> T:
        """Await a decision of the controller on this broker."""
        try:
            await self.reachable()  # what is not begun has no half of it written
        except BaseException:
            work.close()
            raise
        try:
            return await work
        except KeeperError as error:
            log.warning("the controller cannot write (%s: %s)", type(error).__name__, error)
            self.step_down()
            if isinstance(error, Unreachable):
                raise ApiError(ErrorCode.REQUEST_TIMED_OUT, str(error)) from error
            raise ApiError(ErrorCode.NOT_CONTROLLER) from error

    async def _watch_brokers(self, controller: ClusterController) -> None:
        async def act(brokers: dict[int, BrokerInfo]) -> None:
            await controller.brokers_changed(brokers)
            self._watch_over(brokers)

        await self._watch_in_office(controller, controller.live_brokers, act)

    async def _watch_in_office(
        self,
        controller: ClusterController,
        read: Callable[[Watch], Awaitable[T]],
        act: Callable[[T], Awaitable[None]],
    ) -> None:
        """Read with a watch, act, wait for the watch; whoever cannot do it leaves the office."""
        while controller is self.controller:
            changed = asyncio.Event()
            try:
                try:
                    found = await read(changed.set)
                except Unreachable:  # what we know is still right
                    await self._connected.wait()
                    continue
                await act(found)
            except KeeperError as error:
                log.warning("the controller cannot go on: %s (%s)", error, type(error).__name__)
                self.step_down()
                return
            except Exception:
                log.exception("the controller cannot go on")
                self.step_down()
                return
            await changed.wait()

    # -- disks ------------------------------------------------------------------

    async def _tell_of_disks(self) -> None:
        broker_id = self._broker.broker_id
        await patiently(lambda: self.registry.tell_log_dir_event(broker_id))

    async def _watch_disks(self, controller: ClusterController, propagation: Propagation) -> None:
        async def act(found: tuple[set[int], list[str]]) -> None:
            brokers, notes = found
            for broker_id in sorted(brokers):
                propagation.ask_again(broker_id)
            await controller.log_dir_events_taken(notes)

        await self._watch_in_office(controller, self.registry.log_dir_events, act)

    def _storage_told(self, info: BrokerInfo, failed: set[Key], well: set[Key]) -> None:
        controller = self.controller
        if controller is not None and controller.storage_news(info, failed, well):
            self._broker.spawn(self._take_storage_news(controller, info, failed, well))

    async def _take_storage_news(
        self, controller: ClusterController, info: BrokerInfo, failed: set[Key], well: set[Key]
    ) -> None:
        with contextlib.suppress(ApiError):  # we have stepped down
            await self.govern(controller.storage_told(info, failed, well))

    # -- the dead ---------------------------------------------------------------

    def _watch_over(self, brokers: Mapping[int, BrokerInfo]) -> None:
        """Watch over these brokers, and no others."""
        wanted = {
            (info.broker_id, info.epoch): info
            for info in brokers.values()
            if info.broker_id != self._broker.broker_id
        }
        for key in [key for key in self._vigils if key not in wanted]:
            self._vigils.pop(key).cancel()
        for key, info in wanted.items():
            if key not in self._vigils:
                self._vigils[key] = self._broker.spawn(watch_over(info, self._has_died))

    async def _watch_over_controller(self) -> None:
        """Everybody watches over the controller, and the controller over everybody."""
        data, _ = await self._keeper.get(paths.CONTROLLER, self._look_again.set)
        broker_id = int(paths.from_json(data)["brokerid"])
        found = None
        with contextlib.suppress(Unreadable):  # then its session says whether it lives
            found = await self.registry.registration(broker_id)
        self._watch_over({} if found is None else {broker_id: found[0]})

    async def _has_died(self, info: BrokerInfo) -> None:
        """Take its place in ZooKeeper away, before its session ends."""
        self._vigils.pop((info.broker_id, info.epoch), None)
        try:
            found = await self.registry.registration(info.broker_id)
            if found is not None and found[0].epoch == info.epoch:
                log.info("broker %d has died: its port refuses connections", info.broker_id)
                await self.registry.forget(info.broker_id, found[1])
            await self._forget_old_office(info.broker_id)
        except Unreachable:  # it is still to be said when ZooKeeper is back
            await self._connected.wait()
            await self._has_died(info)
        except (KeeperError, Unreadable):
            pass  # its session will end

    async def _keep_balance(self, controller: ClusterController) -> None:
        interval = self._settings["leader.imbalance.check.interval.seconds"]
        percentage = self._settings["leader.imbalance.per.broker.percentage"]
        while controller is self.controller and self._settings["auto.leader.rebalance.enable"]:
            await asyncio.sleep(interval)
            with contextlib.suppress(ApiError):
                await self.govern(controller.balance_leaders(percentage))

    async def _sweep_changes(self) -> None:
        """Notes of changed settings that everybody has read."""
        while True:
            await asyncio.sleep(CHANGE_LIVES_MS / 1000)
            with contextlib.suppress(KeeperError):
                names = await self._keeper.children(paths.CONFIG_CHANGES)
                await asyncio.sleep(CHANGE_LIVES_MS / 1000)
                for name in names:
                    with contextlib.suppress(NoNode):
                        await self._keeper.multi([Delete(f"{paths.CONFIG_CHANGES}/{name}")])

    # -- followers --------------------------------------------------------------

    def is_registered(self, broker_id: int, broker_epoch: int) -> bool:
        """Is this the epoch under which a broker is registered?  While ZooKeeper is away, what
        was known last holds."""
        return self._live_epochs.get(broker_id) == broker_epoch

    async def _watch_epochs(self) -> None:
        while True:
            changed = asyncio.Event()
            try:
                brokers = await self.registry.brokers(changed.set)
                self._live_epochs = {i: info.epoch for i, info in brokers.items()}
            except Unreachable:
                await self._connected.wait()
                continue
            except KeeperError:
                await asyncio.sleep(_RETRY_SECONDS)
                continue
            await changed.wait()

    # -- settings ---------------------------------------------------------------

    async def _watch_configs(self) -> None:
        while True:
            changed = asyncio.Event()
            try:
                changes = await self.registry.config_changes(self._last_change, changed.set)
                for name, entity in sorted(changes.items()):
                    await self._take_change(entity)
                    self._last_change = name
            except Unreachable:
                await self._connected.wait()
                continue
            except KeeperError:
                await asyncio.sleep(_RETRY_SECONDS)
                continue
            await changed.wait()

    async def _take_change(self, entity: str) -> None:
        try:
            await self.orders.config_changed(entity)
        except SettingError as error:
            log.error("/config/%s: %s; it has no effect", entity, error)
            return
        controller = self.controller
        if controller is not None and entity.startswith("topics/"):
            topic = entity.removeprefix("topics/")
            config = self.orders.topic_configs.get(topic, {})
            with contextlib.suppress(ApiError):  # we have stepped down
                await self.govern(controller.topic_config_changed(topic, config))

    # -- leaving ----------------------------------------------------------------

    async def retire(self) -> None:
        """Before we stop: everybody hears what we have decided, and another takes office, while
        we are still busy with our logs."""
        if self._propagation is None:
            return
        assert self._contention is not None
        self._contention.cancel()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_RETIRE_SECONDS):
                await self._propagation.told()
        self._resign()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_RETIRE_SECONDS):
                await self._leave_office()

    def close(self) -> None:
        self._resign()
        self._watch_over({})
