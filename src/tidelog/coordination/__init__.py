"""Who knows what exists: brokers, topics, settings; and who decides.

Everything is written once, against one interface (``keeper.py``): a tree of znodes as
ZooKeeper has it.  On one machine the ``embedded`` keeper serves it from a journal in the
data directory; brokers of a cluster share a real ``zookeeper`` (``zookeeper_server.py`` starts
one, ``zookeeper_absence.py`` says what is wrong with one).  ``paths.py`` names every znode,
``registry.py`` reads (with distrust: ``decoding.py``) and writes them in words, ``metadata.py`` is
the immutable value that brokers act on.

``controller.py`` is the only one who changes what exists.  In a cluster it is one of the
brokers, and also decides who leads (``cluster_controller.py``) and who has replicas
(``moves.py``), and writes that down (``partition_states.py``).  Its decisions are pure functions:
``elections.py`` (leaders), ``topics.py`` (names, where new replicas go), ``placement.py`` (which
replicas to move).  ``together.py`` makes one transaction of many requests, ``admin.py`` is what
handlers ask for.  How decisions reach the brokers is in ``broker/``: ``membership.py``,
``propagation.py``, ``channel.py``, ``orders.py``.
"""
