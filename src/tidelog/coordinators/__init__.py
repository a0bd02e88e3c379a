"""Coordinators: state that is the replay of records in an internal topic.

Enters: requests of group members, and the records of ``__consumer_offsets``.  Leaves: the
same kind of records, and replies.  A partition of that topic is a shard: the broker that
leads it coordinates the groups whose id hashes to it.

Open ``group.py`` first: a classic consumer group as a pure state machine, with what it knows
in ``classic_state.py``; then ``consumer_group.py``: one whose partitions the broker assigns
(KIP-848), with ``consumer_state.py`` and ``assignors.py``.  ``migration.py`` makes one of the
other.  ``offsets.py`` keeps what groups have committed.  ``records.py`` says what their records
look like.
``runtime.py`` does what is not pure: it loads a shard, appends records and waits until they
are safe, and wakes groups when a deadline has passed.  ``service.py`` answers requests.
"""
