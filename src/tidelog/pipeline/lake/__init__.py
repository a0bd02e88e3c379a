"""Topics into a folder of Parquet files, each record exactly once.

Enters: topics and a folder.  Leaves: Parquet files that every reader knows, and a ledger beside
them that says which offsets they hold.

Read ``ledger.py`` first: the format, how a load is published and what a crash leaves.  Then
``load.py`` (the driver: plan, run, publish) with ``plan.py`` (pure) and ``jobs.py`` (Spark), and
``writing.py`` (the task) with ``values.py`` (bytes, text, JSON, CSV), ``schemas.py`` (how columns
grow) and ``layout.py`` (folders).  ``compact.py`` makes few files of many, ``widen.py`` gives a
column one type in all of them, ``continuous.py`` loads without end, ``verify.py`` proves that all
is there, ``reading.py`` is for readers.
"""
