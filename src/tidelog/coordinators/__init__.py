"""Coordinators: state that is kept as records of an internal topic.

A partition of that topic is a shard: the broker that leads it coordinates the groups (later:
transactions) whose id hashes to it.  ``runtime.py`` is what they share: it loads a shard, appends
records and waits until they are committed, and wakes a shard when a deadline has passed.
``records.py`` says what the records look like, ``timeline.py`` keeps state that is written but not
committed.  ``groups/`` holds consumer groups.
"""
