"""Consumer groups and their offsets.

``service.py`` answers requests (open it first); ``shard.py`` holds the offsets of one partition of
``__consumer_offsets``, and in ``group_manager.py`` its groups.  ``classic_group.py`` is a group
whose members assign the partitions, ``consumer_group.py`` one whose partitions the broker assigns
(KIP-848): ``consumer_assignment.py`` computes the target, with ``assignors.py``.  ``migration.py``
turns one kind into the other.  ``offsets.py`` has committed offsets, their records, and when they
expire.

Groups change first and write after: a group queues what must be written, and answers when it is.
So the state is not made by replaying records, as in Kafka's coordinator, but it must come to the
same, or the next coordinator would know something else.  What records say of a group is in one
object (``classic_image.py``, ``consumer_image.py``), and the invariant

    state == replay(records that are written, being written, and marked to be written)

is checked after every step of the random schedules (``tests/coordinators/test_*schedules.py``), for
a classic group whenever it is Stable or Empty: a rebalance that goes on is not written.  Offsets
count when they are written; there the state is the replay at every step (``test_shard.py``).
"""
