"""The election of the controller: the broker that creates the znode ``/controller``.

A loop runs as long as the broker does: be registered, look for a controller, become it if there is
none, wait until something changes.  After an expired session the broker first registers again, or
stops if another has its id by now.

When a write of the controller fails because another is elected, or when it is not known whether it
has happened, this one steps down: the next controller, which may be on the same broker, reads
everything again.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, TypeVar

from tidelog.controller.active_controller import ActiveController
from tidelog.controller.controller import Controller
from tidelog.controller.failure_detector import FailureDetector
from tidelog.controller.host import ControllerHost, Requests
from tidelog.controller.propagation import Propagation
from tidelog.controller.registration import IdTaken, Registration
from tidelog.controller.store import Key
from tidelog.controller.watching import RETRY_SECONDS
from tidelog.errors import ApiError, ErrorCode, SettingError
from tidelog.keeper import paths
from tidelog.keeper.keeper import (
    BadVersion,
    Delete,
    Keeper,
    KeeperError,
    NodeExists,
    NoNode,
    NotWritten,
    Stat,
    Unreachable,
)
from tidelog.keeper.registry import Registry
from tidelog.keeper.znodes import UnreadableZnode

log = logging.getLogger(__name__)

T = TypeVar("T")
_AFTER_BUG_SECONDS = 1.0
_LEAVE_SECONDS = 2.0


class Election:
    """See the module."""

    def __init__(
        self,
        host: ControllerHost,
        keeper: Keeper,
        registry: Registry,
        registration: Registration,
        requests: Requests,
        connected: asyncio.Event,
        log_epochs: Callable[[], Mapping[Key, int]],
    ) -> None:
        self._host = host
        self._keeper = keeper
        self._settings = host.settings
        self._registry = registry
        self._registration = registration
        self._requests = requests
        self._connected = connected
        self._log_epochs = log_epochs
        self._detector = FailureDetector(host, registry, connected)
        self._active: ActiveController | None = None
        self._look_again = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    @property
    def controller(self) -> Controller | None:
        """The controller, while it is on this broker."""
        return None if self._active is None else self._active.controller

    # -- for requests that the controller decides -----------------------------------

    async def reachable(self) -> None:
        """Can anything be decided now?  ApiError if not."""
        try:
            await self._keeper.reachable()
        except Unreachable as error:
            raise ApiError(ErrorCode.REQUEST_TIMED_OUT, str(error)) from error

    async def active(self) -> Controller:
        """The controller, which must be on this broker."""
        if self._active is None:
            await self.reachable()  # without ZooKeeper there may be none anywhere
            raise ApiError(ErrorCode.NOT_CONTROLLER)
        return self._active.controller

    async def decide(self, work: Coroutine[Any, Any, T]) -> T:
        """Await a decision of the controller on this broker."""
        try:
            await self.reachable()  # what is not begun has no half of it written
        except BaseException:
            work.close()
            raise
        try:
            return await work
        except NotWritten as error:
            raise ApiError(ErrorCode.KAFKA_STORAGE_ERROR, str(error)) from error
        except KeeperError as error:
            log.warning("the controller cannot write (%s: %s)", type(error).__name__, error)
            self.step_down()
            if isinstance(error, Unreachable):
                raise ApiError(ErrorCode.REQUEST_TIMED_OUT, str(error)) from error
            raise ApiError(ErrorCode.NOT_CONTROLLER) from error

    # -- the election ---------------------------------------------------------------

    def start(self) -> None:
        self._task = self._host.spawn(self._run())

    def look_again(self) -> None:
        """The session or a znode has changed."""
        self._look_again.set()

    async def _run(self) -> None:
        complaint = ""
        while True:
            self._look_again.clear()
            try:
                await self._connected.wait()
                await self._registration.ensure(self._look_again.set)
                elected = await self._elected()
                if elected is None:
                    self._stop_deciding()
                    await self._elect()
                    continue
                if elected.own and self._active is None:
                    # We were elected without learning of it: there is no controller.  Begin again.
                    await self._keeper.multi([Delete(paths.CONTROLLER)])
                    continue
                if not elected.own:
                    self._stop_deciding()
                    await self._watch_controller()
            except (NodeExists, BadVersion, NoNode, Unreachable):
                continue
            except IdTaken as error:
                self._stop_deciding()
                self._host.fail(error)
                return
            except SettingError as error:  # a znode that an operator has to delete
                if str(error) != complaint:
                    complaint = str(error)
                    log.error("%s", complaint)
                await asyncio.sleep(RETRY_SECONDS)
                continue
            except NotWritten as error:
                if not self._requests.informed.is_set():  # a broker that cannot start
                    self._host.fail(error)
                    return
                await asyncio.sleep(RETRY_SECONDS)
                continue
            except KeeperError as error:
                log.warning("ZooKeeper: %s (%s)", error, type(error).__name__)
                self._stop_deciding()
                await asyncio.sleep(RETRY_SECONDS)
                continue
            except Exception as error:
                # A znode that makes no sense, or a bug of ours; another broker may do better.
                log.exception("cannot be controller")
                self._stop_deciding()
                await self._withdraw()
                if self._host.standalone and not self._requests.informed.is_set():
                    self._host.fail(error)
                    return
                await asyncio.sleep(_AFTER_BUG_SECONDS)
                continue
            await self._look_again.wait()

    async def _elected(self) -> Stat | None:
        try:
            _, stat = await self._keeper.get(paths.CONTROLLER, self._look_again.set)
        except NoNode:
            return None
        return stat

    async def _elect(self) -> None:
        host = self._host
        propagation = Propagation(host, self._requests.apply)
        controller = Controller(self._keeper, self._settings, host.clock, propagation.publish)
        await controller.elect(host.broker_id)
        log.info("controller, epoch %d", controller.epoch)
        propagation.epoch = controller.epoch
        controller.carried_out_here = propagation.carried_out_here
        try:
            await controller.load(host.metadata.cluster_id, host.broker_id, self._log_epochs())
        except BaseException:
            propagation.close()
            raise
        self._active = ActiveController(
            host, self._registry, controller, propagation, self._detector, self, self._connected
        )

    async def _watch_controller(self) -> None:
        """Let the failure detector watch the controller, which is on another broker."""
        data, _ = await self._keeper.get(paths.CONTROLLER, self._look_again.set)
        broker_id = int(paths.from_json(data)["brokerid"])
        found = None
        with contextlib.suppress(UnreadableZnode):  # then its session says whether it lives
            found = await self._registry.registration(broker_id)
        self._detector.watch({} if found is None else {broker_id: found[0]})

    async def _withdraw(self) -> None:
        """Remove the znode of the controller, if it is ours."""
        with contextlib.suppress(KeeperError):
            stat = await self._keeper.exists(paths.CONTROLLER)
            if stat is not None and stat.own:
                await self._keeper.multi([Delete(paths.CONTROLLER)])

    # -- stepping down --------------------------------------------------------------

    def _stop_deciding(self) -> None:
        if self._active is not None:
            log.info("no longer controller (epoch %d)", self._active.controller.epoch)
            self._active.close()
            self._active = None

    def step_down(self) -> None:
        """What we know may be wrong: the controller that is elected next reads everything again."""
        self._stop_deciding()
        self._look_again.set()

    async def leave(self) -> None:
        """Before we stop: every broker gets what we have decided, and another is elected, while
        we are still busy with our logs."""
        if self._active is None:
            return
        assert self._task is not None
        self._task.cancel()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_LEAVE_SECONDS):
                await self._active.sent()
        self._stop_deciding()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_LEAVE_SECONDS):
                await self._withdraw()

    def close(self) -> None:
        self._stop_deciding()
        self._detector.watch({})
