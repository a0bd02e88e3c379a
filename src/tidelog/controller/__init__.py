"""The controller: which brokers live, which topics exist, which replicas lead.

Open ``membership.py`` first: a broker registers in the keeper (``registration.py``), and one of
them is elected controller (``election.py``, ``active_controller.py``).  A lone broker is a cluster
of one.  ``controller.py`` holds the metadata of the cluster and decides, with functions that do no
I/O: ``topics.py`` and ``placement.py`` for replicas, ``elections.py``, ``reassignments.py`` and
``in_sync_changes.py`` for one partition, ``partition_changes.py`` for all of them.  Decisions are
written by ``store.py``, fenced by the controller's epoch, and sent to the brokers by
``propagation.py`` and ``broker_channel.py``.  ``failure_detector.py`` notices a dead process before
its session ends.  ``admin.py`` is what handlers ask, on any broker; ``coalescing.py`` makes one
transaction of many requests.  What is needed of the broker itself is in ``host.py``.
"""
