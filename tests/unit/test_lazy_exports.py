"""Names of a package are imported at their first use, and stay."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import kiln
from kiln import expand
from kiln.lazy_exports import lazy_exports

PACKAGES = [file for file in Path(kiln.__file__).parent.rglob("__init__.py") if "lazy_exports(" in file.read_text()]


def test_a_name_is_that_of_its_module(monkeypatch: pytest.MonkeyPatch) -> None:
    from kiln.expand import ci_support_config_file

    monkeypatch.delitem(vars(expand), "config_file_text", raising=False)
    assert expand.config_file_text is ci_support_config_file.config_file_text
    assert vars(expand)["config_file_text"] is ci_support_config_file.config_file_text


def test_another_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        lazy_exports("kiln.expand", {"ci_support_config_file": "read_config config_file_text"})("nothing")


@pytest.mark.parametrize("file", PACKAGES, ids=lambda file: file.parent.name)
def test_the_table_has_what_type_checkers_see(file: Path) -> None:
    tree = ast.parse(file.read_text())
    public = next(ast.literal_eval(node.value) for node in tree.body if isinstance(node, ast.Assign))  # __all__
    imports = {
        (node.module, alias.name)
        for block in tree.body
        if isinstance(block, ast.If)
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
        if alias.name in public
    }
    package = ".".join(("kiln", *file.parent.relative_to(Path(kiln.__file__).parent).parts))
    calls = (node for node in ast.walk(tree) if isinstance(node, ast.Call) and ast.unparse(node.func) == "lazy_exports")
    table = {module: names for call in calls for module, names in ast.literal_eval(call.args[1]).items()}
    found = {(f"{package}.{module}", name) for module, names in table.items() for name in names.split()}
    assert found == imports


@pytest.mark.parametrize("file", PACKAGES, ids=lambda file: file.parent.name)
def test_no_name_is_that_of_a_module(file: Path) -> None:
    # an import of the module, by whoever comes first, would put it in the name's place
    tree = ast.parse(file.read_text())
    public = next(ast.literal_eval(node.value) for node in tree.body if isinstance(node, ast.Assign))
    assert not {path.stem for path in file.parent.iterdir()} & set(public)
