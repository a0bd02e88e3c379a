"""The same fixtures as for the tests of the log."""

from log.conftest import no_sync, quick_path

__all__ = ["no_sync", "quick_path"]
