"""Bytes to messages and back, without any I/O.

Enters: a frame's bytes.  Leaves: message objects (or plain tuples on the hot path),
and the other way round.  Nothing here opens a socket or a file or reads a clock.

Read ``schema.py`` first (how a message is declared), then any file in ``messages/``,
then ``compiler.py`` (how the declaration becomes code), ``frame.py`` (headers),
``hot.py`` (Produce and Fetch by hand), ``batch.py`` (the 61-byte header of a record
batch), ``records.py`` (what is inside a batch) and ``compression.py``.
"""
