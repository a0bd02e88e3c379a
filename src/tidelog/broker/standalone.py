"""A broker without ZooKeeper: the only member of its cluster, on a keeper of its own.

It runs the same controller as a cluster.  Special is only what is here: the journal of the embedded
keeper lies in a data directory, and the logs may know more than the keeper, as Kafka may have
written them, or the journal may be lost.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping

from tidelog import files
from tidelog.controller.store import Key, new_topic
from tidelog.controller.topics import plan_topic
from tidelog.errors import ApiError, SettingError
from tidelog.ids import random_uuid
from tidelog.keeper import paths
from tidelog.keeper.embedded import EmbeddedKeeper
from tidelog.keeper.keeper import Create, Keeper
from tidelog.keeper.registry import Registry
from tidelog.keeper.znodes import KEEP_ALL
from tidelog.log.manager import LogManager
from tidelog.metadata import INTERNAL_TOPICS, BrokerInfo
from tidelog.new_topic import NewTopic
from tidelog.settings import Settings

log = logging.getLogger(__name__)

KEEPER_JOURNAL = "tidelog-keeper.journal"
# Topic settings are not on disk; without this one, retention would delete committed offsets.
_INTERNAL_CONFIG = {"cleanup.policy": "compact"}


def open_keeper(manager: LogManager) -> EmbeddedKeeper:
    """The keeper whose journal is in one of the data directories; a new one in the first."""
    journals = [os.path.join(path, KEEPER_JOURNAL) for path in manager.directories]
    found = [path for path in journals if files.exists(path)]
    if len(found) > 1:
        raise SettingError(
            f"log.dirs: {found[0]} and {found[1]} are both journals of a keeper; "
            "these directories belong to different brokers"
        )
    return EmbeddedKeeper.open(found[0] if found else journals[0])


async def reconcile(
    keeper: Keeper, registry: Registry, manager: LogManager, broker: BrokerInfo, settings: Settings
) -> None:
    """Compare the logs on disk with the keeper, before the controller is elected.

    Logs of topics whose deletion was interrupted go.  With a keeper that was never used, unknown
    logs are adopted.  Otherwise they are left for the controller: what it does not know is
    quarantined, never deleted.
    """
    deleted = set(await keeper.children(paths.DELETED_TOPICS))
    for key in [key for key in manager.logs if key[0] in deleted]:
        files.remove_tree(manager.delete(*key) or "")
    if await keeper.exists(paths.SETTLED) is None:
        await _adopt(keeper, registry, manager, broker, settings)
        await keeper.multi([Create(paths.SETTLED)])
    used = (i for opened in manager.logs.values() for i in opened.producers.producers)
    await registry.skip_producer_ids(broker.broker_id, max(used, default=-1))


async def _adopt(
    keeper: Keeper, registry: Registry, manager: LogManager, broker: BrokerInfo, settings: Settings
) -> None:
    topics = await registry.topics()
    on_disk: dict[str, list[int]] = {}
    for name, index in manager.logs:
        if name not in topics:
            on_disk.setdefault(name, []).append(index)
    for name, indexes in on_disk.items():
        topic_id = manager.topic_ids.get((name, indexes[0])) or random_uuid()
        config = _INTERNAL_CONFIG if name in INTERNAL_TOPICS else KEEP_ALL
        new = NewTopic(name, max(indexes) + 1, 1, config=config, topic_id=topic_id)
        try:
            topic = plan_topic(new, topics, {broker.broker_id: broker}, settings)
        except ApiError as error:
            log.warning("%s cannot be adopted: %s", name, error.message)
            continue
        await keeper.multi(new_topic(topic, controller_epoch=0))
        topics[name] = topic
        log.warning(
            "%s: adopted, %d partitions; its settings are not known, so it keeps "
            "everything until retention.ms and retention.bytes are set",
            name,
            len(topic.partitions),
        )


def log_epochs(manager: LogManager) -> Mapping[Key, int]:
    """The latest leader epochs in the logs: the keeper may be behind them."""
    return {key: opened.epochs.latest for key, opened in manager.logs.items()}
