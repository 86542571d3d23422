"""Names of a package whose modules are imported at their first use: a command needs few modules of many packages."""

from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


def lazy_exports(package: str, modules: Mapping[str, str]) -> Callable[[str], Any]:
    """Return the ``__getattr__`` of a package: it imports the module that defines a name, at the name's first use.

    ``modules`` are the names, separated by spaces, by their module in the package.
    """
    origins = {name: module for module, names in modules.items() for name in names.split()}

    def export(name: str) -> Any:
        """Return the value of a name, and keep it in the package."""
        if name not in origins:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = getattr(importlib.import_module(f"{package}.{origins[name]}"), name)
        setattr(sys.modules[package], name, value)
        return value

    return export
