"""Who knows what exists: brokers, topics, settings; and who decides.

Everything is written once, against one interface (``keeper.py``): a tree of znodes as
ZooKeeper has it.  On one machine the ``embedded`` keeper serves it from a journal in the
data directory.  ``paths.py`` names every znode, ``metadata.py`` is the immutable value
that brokers act on, ``controller.py`` the only one who changes it.
"""
