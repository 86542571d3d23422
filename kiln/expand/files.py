"""The file of a cell in .ci_support: its text, and the cell of a file."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from kiln.errors import MalformedYaml, UnknownConfig, VariantFault, nearest
from kiln.model.cell import Cell
from kiln.variants.files import Source, as_list, check, zip_groups
from kiln.yamltext import Scalars, mapping_text, parse, read_text

if TYPE_CHECKING:
    from typing import Any

    from kiln.model.feedstock import Feedstock
    from kiln.yamltext import Document

_PLATFORM = re.compile(r"(linux|osx|win|freebsd|emscripten|wasi|zos)_([a-z0-9]+)_")
_SETTINGS = {"zip_keys", "pin_run_as_build"}


def text(cell: Cell) -> str:
    """The text of a cell's file, byte for byte as conda-smithy writes it."""
    data: dict[str, Any] = dict(cell.variant)
    if cell.zip_keys:
        data["zip_keys"] = cell.zip_keys
    if cell.pin_run_as_build:
        data["pin_run_as_build"] = cell.pin_run_as_build
    return mapping_text(data)


def read(feedstock: Feedstock, config: str) -> Cell:
    """The cell whose file is ``.ci_support/CONFIG.yaml``.

    Raises:
        UnknownConfig: there is no such file.
        KilnError: the file is malformed.
    """
    name = config.removesuffix(".yaml").removeprefix(".ci_support/")
    path = feedstock.configs / f"{name}.yaml"
    if "/" in name or not path.is_file():
        names = sorted(file.stem for file in feedstock.configs.glob("*.yaml"))
        near = nearest(name, names) or ("kiln matrix lists them" if names else "kiln rerender writes them")
        raise UnknownConfig(f"there is no cell {name!r}", why=f".ci_support holds {len(names)} cells", hint=near)
    shown = f".ci_support/{name}.yaml"
    document = parse(read_text(path, shown), shown, Scalars.TEXT)
    if not isinstance(document.value, dict):
        raise MalformedYaml("a cell's file is a mapping of keys to lists", at=document.place())
    check(Source(name=shown, values=document.value, document=document))
    return _cell(name, document)


def _cell(name: str, document: Document) -> Cell:
    values = {key: _texts(key, value, document) for key, value in document.value.items() if key not in _SETTINGS}
    return Cell(
        name=name,
        platform=values.get("target_platform", (_subdir(name),))[0],
        variant=values,
        zip_keys=tuple(zip_groups(document.value.get("zip_keys"))),
        pin_run_as_build=document.value.get("pin_run_as_build") or {},
        image=values.get("docker_image", (None,))[0],
    )


def _texts(key: str, value: Any, document: Document) -> tuple[str, ...]:
    items = tuple(as_list(value))
    if not items or any(not isinstance(item, str) for item in items):
        raise VariantFault(f"{key} is no list of values", at=document.place(key))
    return items


def _subdir(name: str) -> str:
    found = _PLATFORM.match(f"{name}_")
    return f"{found[1]}-{found[2]}" if found else "linux-64"
