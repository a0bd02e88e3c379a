"""Coordinators: state that is kept as records of an internal topic.

``runtime.py`` is what coordinators share, and knows nothing of groups: it loads the partitions of
the topic that this broker leads, by replaying their records into a shard each, finds the shard of
a key, and unloads shards when leadership goes.  A shard writes through ``writer.py`` and is woken
by ``timer.py``; ``records.py`` encodes and decodes records.  ``groups/`` is the group coordinator.
"""
