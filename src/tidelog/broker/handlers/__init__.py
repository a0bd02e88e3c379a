"""One file per API, named by its key.  A handler translates; the logic lives elsewhere."""

from __future__ import annotations

import importlib
import pkgutil


def load_all() -> None:
    """Import every handler, which fills the registry."""
    for module in pkgutil.iter_modules(__path__):
        importlib.import_module(f"{__name__}.{module.name}")
