"""What handlers ask for: of the controller, whichever broker it is on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from tidelog.metadata import ClusterMetadata, TopicInfo
from tidelog.new_topic import NewTopic


class Admin(Protocol):
    """The controller here, or :class:`~tidelog.controller.admin.ClusterAdmin`."""

    @property
    def metadata(self) -> ClusterMetadata: ...

    async def create_topic(self, new: NewTopic, *, validate_only: bool = False) -> TopicInfo: ...

    async def delete_topic(self, name: str) -> None: ...

    async def create_partitions(
        self,
        name: str,
        count: int,
        assignment: Sequence[Sequence[int]] | None = None,
        *,
        validate_only: bool = False,
    ) -> None: ...

    async def set_topic_config(self, name: str, config: Mapping[str, str]) -> None: ...

    async def set_broker_config(self, entity: str, config: Mapping[str, str]) -> None: ...

    async def set_group_config(self, group_id: str, config: Mapping[str, str]) -> None: ...

    async def allocate_producer_ids(self, broker_id: int) -> range: ...
