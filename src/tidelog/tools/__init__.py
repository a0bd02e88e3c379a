"""The command line: one file per command, loaded only when it is used.

``main.py`` is the table of commands and the one place where an error becomes a sentence.
"""
