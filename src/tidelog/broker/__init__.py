"""The broker: sockets in, answers out.

Enters: frames on sockets.  Leaves: frames, and file ranges straight from the log.
Read it in the order a request travels: ``server.py`` accepts, ``transport.py`` and ``lanes.py``
bring bytes, ``connection.py`` cuts frames, ``dispatch.py`` makes a ``Request`` of each and finds
its handler in ``registry.py``, ``handlers/kNN_*.py`` translate, ``failures.py`` makes the answer
to what failed.  ``broker.py`` holds it all together.  ``controller_requests.py`` carries out what
the controller decides, after ``controller_request_checks.py`` has compared it with ZooKeeper.

One thread, one event loop: what is not awaited is atomic.
"""
