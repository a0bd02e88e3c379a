"""What the command line shows of a cluster, and a console can: plain data.

Enters: a :class:`~tidelog.client.cluster.Cluster` to ask.  Leaves: frozen dataclasses, whose
fields are the keys of ``--json``.  Nothing here prints.

``cluster.py`` has brokers, ``topics.py`` topics and partitions, ``groups.py`` consumer groups,
``in_sync.py`` which replicas are in sync and what keeps a topic from being written to.
"""
