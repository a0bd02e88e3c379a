"""Admin requests: topics, settings and producer ids, on any broker.

The controller may be on this broker or on another, to which the request is then forwarded.  The
answer comes when this broker's metadata has the change, so that the next request on the same
connection finds what was created.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from typing import Any, TypeVar

from tidelog.client.admin import (
    TIMEOUT_MS,
    create_request,
    delete_request,
    grow_request,
)
from tidelog.client.connection import BrokerUnreachable
from tidelog.client.peer import Peer
from tidelog.controller.controller import Controller
from tidelog.controller.election import Election
from tidelog.controller.host import ControllerHost, Requests
from tidelog.errors import ApiError, ErrorCode
from tidelog.keeper import paths
from tidelog.keeper.keeper import ConnectionLost, KeeperError, Unreachable
from tidelog.keeper.registry import Registry
from tidelog.metadata import BrokerInfo, ClusterMetadata, PartitionInfo, TopicInfo
from tidelog.new_topic import NewTopic
from tidelog.wire.messages.create_partitions import CreatePartitionsResponse
from tidelog.wire.messages.create_topics import CreateTopicsResponse
from tidelog.wire.messages.delete_topics import DeleteTopicsResponse
from tidelog.wire.schema import Message

R = TypeVar("R", bound=Message)
T = TypeVar("T")

_RETRY_SECONDS = 0.1
_LOOK_SECONDS = 1.0


class Admin:
    """See the module."""

    def __init__(
        self, host: ControllerHost, registry: Registry, requests: Requests, election: Election
    ) -> None:
        self._host = host
        self._registry = registry
        self._requests = requests
        self._election = election
        self._peer: tuple[BrokerInfo, Peer] | None = None

    @property
    def metadata(self) -> ClusterMetadata:
        return self._host.metadata

    # -- topics -----------------------------------------------------------------

    async def create_topic(self, new: NewTopic, *, validate_only: bool = False) -> TopicInfo:
        try:
            topic = await self._decide(
                lambda controller: controller.create_topic(new, validate_only=validate_only),
                lambda: self._forward_create(new, validate_only),
            )
        except ApiError as error:
            if error.code == ErrorCode.TOPIC_ALREADY_EXISTS:
                # Another broker was faster; the client may use the topic now.
                await self._until(lambda metadata: new.name in metadata.topics, new.name)
            raise
        if validate_only:
            return topic
        topic_id = topic.topic_id
        await self._until(lambda metadata: topic_id in metadata.topic_names, new.name, topic_id)
        return self.metadata.topic_by_id(topic_id) or topic

    async def _forward_create(self, new: NewTopic, validate_only: bool) -> TopicInfo:
        request = create_request([new], validate_only=validate_only)
        result = (await self.ask(request, CreateTopicsResponse, 7)).topics[0]
        _raise(result.error_code, result.error_message)
        partition = PartitionInfo(-1, -1, (-1,) * max(result.replication_factor, 1), ())
        partitions = (partition,) * max(result.num_partitions, 1)
        return TopicInfo(new.name, result.topic_id, partitions, new.config)

    async def delete_topic(self, name: str) -> None:
        known = self.metadata.topics.get(name)

        async def forwarded() -> None:
            answer = await self.ask(delete_request([name]), DeleteTopicsResponse, 6)
            _raise(answer.responses[0].error_code, answer.responses[0].error_message)

        await self._decide(lambda controller: controller.delete_topic(name), forwarded)
        if known is not None:
            await self._until(lambda metadata: known.topic_id not in metadata.topic_names)

    async def create_partitions(
        self,
        name: str,
        count: int,
        assignment: Sequence[Sequence[int]] | None = None,
        *,
        validate_only: bool = False,
    ) -> None:
        async def forwarded() -> None:
            request = grow_request(name, count, assignment, validate_only=validate_only)
            answer = await self.ask(request, CreatePartitionsResponse, 3)
            _raise(answer.results[0].error_code, answer.results[0].error_message)

        await self._decide(
            lambda controller: controller.create_partitions(
                name, count, assignment, validate_only=validate_only
            ),
            forwarded,
        )
        if not validate_only:

            def grown(metadata: ClusterMetadata) -> bool:
                topic = metadata.topics.get(name)
                return topic is None or len(topic.partitions) >= count

            await self._until(grown)

    # -- settings and ids -----------------------------------------------------------

    async def set_topic_config(self, name: str, config: Mapping[str, str]) -> None:
        work = self._registry.write_config(paths.topic_config(name), config)
        await self._configure(work, f"topics/{name}")

    async def set_broker_config(self, entity: str, config: Mapping[str, str]) -> None:
        work = self._registry.write_config(paths.broker_config(entity), config)
        await self._configure(work, f"brokers/{entity}")

    async def set_group_config(self, group_id: str, config: Mapping[str, str]) -> None:
        work = self._registry.write_group_config(group_id, config)
        await self._configure(work, paths.group_config(group_id).removeprefix("/config/"))

    async def _configure(self, work: Awaitable[None], entity: str) -> None:
        try:
            await work
        except Unreachable as error:
            raise ApiError(ErrorCode.REQUEST_TIMED_OUT, str(error)) from error
        except ConnectionLost as error:
            message = f"{error}: it is not known whether the settings are changed"
            raise ApiError(ErrorCode.REQUEST_TIMED_OUT, message) from error
        with contextlib.suppress(ConnectionLost):  # it is written; the watch brings it
            await self._requests.config_changed(entity)

    async def allocate_producer_ids(self, broker_id: int) -> range:
        return await self._registry.allocate_producer_ids(broker_id)

    # -- the controller, wherever it is -----------------------------------------------

    async def ask(self, request: Message, answer: type[R], version: int) -> R:
        """Ask the broker that is controller; BrokerUnreachable if there is none."""
        info = self.metadata.brokers.get(self.metadata.controller_id)
        if info is None or info.broker_id == self._host.broker_id:
            raise BrokerUnreachable("no controller is known")
        if self._peer is None or self._peer[0] != info:
            if self._peer is not None:
                self._peer[1].close()
            self._peer = info, self._host.peer(info)
        return await self._peer[1].request(request, answer, version)

    async def _decide(
        self,
        local: Callable[[Controller], Coroutine[Any, Any, T]],
        forwarded: Callable[[], Awaitable[T]],
    ) -> T:
        """Have the controller decide, here or elsewhere; there may be none for a moment, and it may
        be replaced while it decides."""
        limit = self._host.clock.monotonic() + TIMEOUT_MS / 1000
        while True:
            controller = self._election.controller
            try:
                if controller is not None:
                    return await self._election.decide(local(controller))
                return await forwarded()
            except BrokerUnreachable as error:
                problem = ApiError(ErrorCode.NOT_CONTROLLER, error.message)
            except ApiError as error:
                if error.code != ErrorCode.NOT_CONTROLLER:
                    raise
                problem = error
            if self._host.clock.monotonic() > limit:
                raise problem
            await self._election.reachable()  # without ZooKeeper there will be none
            await asyncio.sleep(_RETRY_SECONDS)

    async def _until(
        self,
        known: Callable[[ClusterMetadata], bool],
        name: str | None = None,
        topic_id: bytes | None = None,
    ) -> None:
        """Wait until this broker's metadata has it, or until the topic (of this id) is gone: one
        that was deleted at once may never be in it."""
        try:
            async with asyncio.timeout(TIMEOUT_MS / 1000):
                while not known(self.metadata):
                    try:
                        async with asyncio.timeout(_LOOK_SECONDS):
                            await self._host.next_metadata()
                    except TimeoutError:
                        if name is not None and await self._is_gone(name, topic_id):
                            return
        except TimeoutError:
            raise ApiError(ErrorCode.REQUEST_TIMED_OUT) from None

    async def _is_gone(self, name: str, topic_id: bytes | None) -> bool:
        try:
            await self._registry.sync()  # our server may be behind
            topics, unreadable = await self._registry.assignments([name])
        except KeeperError:
            return False
        found = topics.get(name)
        if found is None:
            return name not in unreadable
        return topic_id not in (None, found.topic_id)

    def close(self) -> None:
        if self._peer is not None:
            self._peer[1].close()


def _raise(code: int, message: str | None) -> None:
    if code:
        raise ApiError(ErrorCode(code), message)
