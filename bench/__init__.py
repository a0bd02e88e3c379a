"""Benchmarks: tidelog beside Apache Kafka, and both beside what this machine can do.

    python -m bench [--quick] [--only NAME ...] [--no-kafka] [--rounds N] [--full]
                    [--json FILE] [--write] [--growth]

A time alone says nothing about a broker: it says something about a machine.  So every
figure stands beside peers, measured in the same run, turn by turn, with the same load
generator:

    Kafka      Apache Kafka, one combined KRaft node with the same settings; its jars come
               by Maven, and where they cannot be had its columns stay empty
    loopback   the same requests and answers between two processes, and nothing else
    floor      a bare Python server that takes the same frames, writes them to rolling
               files (or sends the same file ranges) and answers: no Kafka, no checks

A ratio is the median of the rounds' own ratios, so a slow moment of the machine falls on
both sides; against Kafka it is turned so that more than one is better for tidelog.  The log
under load rolls: small segments, let go as fast as they fill, because a log that grows
measures how quickly the machine finds new memory.

Where to look: ``rows`` is the list of sections, ``limits`` the machine by itself, ``floor``,
``kafka_peer`` and ``peers`` the contenders, ``load``, ``background`` and ``members`` the
generators, ``contest`` the turns, ``report`` the table, ``notes.md`` the reasons of rows that
fall short, and one file for each kind of row (``produce``, ``fetch``, ``latency``, ``mixed``,
``groups``, ``compaction``, ``partitions``, ``clients``, ``footprint``, ``startup``, ``growth``,
``cluster`` with its ``cluster_peers``).
"""
