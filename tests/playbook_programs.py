"""The modules and programs of the playbooks, which are in no package."""

from __future__ import annotations

import importlib.util
from importlib.machinery import SourceFileLoader
from pathlib import Path
from typing import Any

ANSIBLE = Path(__file__).parents[1] / "ansible"
WORKER_PROGRAMS = "roles/kiln_prepare/files/root/usr/local/sbin"
CONTROLLER_PROGRAMS = "roles/kiln_controller/files/root/usr/local/sbin"


def load(name: str) -> Any:
    """Load a module of the playbooks, or a program that they copy, by its path."""
    file = ANSIBLE / name
    loader = SourceFileLoader(file.stem.replace("-", "_"), str(file))
    spec = importlib.util.spec_from_loader(loader.name, loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    return module
