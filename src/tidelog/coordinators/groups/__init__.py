"""Consumer groups and their offsets.

Open ``classic_group.py`` first: a group whose members assign the partitions, with what it knows in
``classic_state.py``; then ``consumer_group.py``: one whose partitions the broker assigns (KIP-848),
with ``consumer_state.py`` and ``assignors.py``.  ``migration.py`` makes one of the other.
``offsets.py`` keeps what groups have committed.  ``shard.py`` holds all of one partition of
``__consumer_offsets``, ``service.py`` answers requests.
"""
