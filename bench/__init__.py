"""Benchmarks: what tidelog does, as shares of what this machine can do.

    python -m bench [--quick] [--only NAME ...] [--rounds N] [--json FILE] [--write]

A time alone says nothing about a broker: it says something about a machine.  So every
figure stands beside a peer that does less with the same bytes, measured in the same run,
turn by turn, with the same load generator:

    loopback   the same requests and answers between two processes, and nothing else
    floor      a bare Python server that takes the same frames, writes them to rolling
               files (or sends the same file ranges) and answers: no Kafka, no checks

A share is the median of the rounds' own ratios, so a slow moment of the machine falls on
both sides.  The log under load rolls: small segments, let go as fast as they fill, because
a log that grows measures how quickly the machine finds new memory.

Where to look: ``limits`` is the machine by itself, ``floor`` the peers, ``load`` the
generators, ``rows`` the list of sections, and one file for each kind of row
(``throughput``, ``latency``, ``footprint``, ``clients``).
"""
