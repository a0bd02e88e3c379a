"""The tree of znodes: what exists in a cluster, and who may change it.

``keeper.py`` is the interface: ZooKeeper's tree, with versions, watches, ephemeral nodes and
transactions.  On one machine the ``embedded`` keeper serves it from a journal in the data
directory; brokers of a cluster share a real ``zookeeper`` (``zookeeper_server.py`` starts one,
``zookeeper_absence.py`` finds out what is wrong with one).  ``paths.py`` names every znode,
``znodes.py`` decodes what they hold and trusts none of it, ``registry.py`` reads and writes them
as brokers, topics and settings.
"""
