"""The controller: which brokers live, which topics exist, which replicas lead.

Open ``membership.py`` first: a broker registers in the keeper, and one of them is elected
controller.  ``controller.py`` and ``cluster_controller.py`` decide, with functions that do no I/O:
``elections.py`` for leaders, ``topics.py`` and ``placement.py`` for replicas.  What they decide
is written by ``partition_states.py``, fenced by the controller's epoch; ``reassignments.py``
changes replicas.  ``propagation.py`` and ``broker_channel.py`` send it to the brokers,
``failure_detector.py`` notices a dead process before its session ends.  ``admin.py`` is what
handlers ask, on any broker; ``coalescing.py`` makes one transaction of many requests.
"""
