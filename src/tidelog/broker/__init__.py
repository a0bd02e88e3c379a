"""The broker: sockets in, partitions inside, answers out.

Enters: frames on sockets.  Leaves: frames, and file ranges straight from the log.
Read it in the order a request travels: ``server.py`` accepts, ``connection.py`` cuts
frames, ``dispatch.py`` finds the handler in the registry, ``handlers/kNN_*.py``
translate, ``partition.py`` is the only writer of a partition.  ``broker.py`` holds
it all together.

In a cluster ``membership.py`` registers the broker in ZooKeeper and makes one of them
controller, ``propagation.py`` and ``channel.py`` send its decisions, ``orders.py`` carries them
out, and ``peers.py`` is a connection to another broker; ``log_dirs.py`` says which directories take
no writes, so that others lead what is in them.  See ``coordination/`` and ``replication/``.

One thread, one event loop: what is not awaited is atomic.
"""
