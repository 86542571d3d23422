"""Machine types are read from a table, and selected by provider and name."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from kiln.base.errors import MalformedYaml, UsageError
from kiln.fleet.plan import choice

if TYPE_CHECKING:
    from pathlib import Path

ROW = """
- {provider: cloud, type: small, flavor: t3.small, cores: 2, memory: 2, disk: 8, gpus: 0, gpu: ""}
"""


def test_machine_types_are_selected_by_provider_and_name(tmp_path: Path) -> None:
    path = tmp_path / "machine_types.yml"
    path.write_text(f"kiln_machine_types:{ROW}{ROW.replace('small, ', 'large, ', 1)}")
    table = choice.read_machine_types(path)
    selection = choice.select_types_by_name(table, provider="cloud", types=("large", "small"))
    assert [machine_type.type for machine_type in selection] == ["large", "small"]
    assert (table[0].name, table[0].billed, table[0].gpus) == ("t3.small", 1.0, 0)
    (by_flavor,) = choice.select_types_by_name(table, provider="cloud", types=("t3.small",))
    assert by_flavor.type == "small", "of two types of a flavor the first"
    with pytest.raises(UsageError, match="cloud has no machine type 'huge'"):
        choice.select_types_by_name(table, provider="cloud", types=("huge",))
    with pytest.raises(UsageError, match="unknown provider 'clou'") as unknown:
        choice.select_types_by_name(table, provider="clou", types=("large",))
    assert "did you mean 'cloud'?" in unknown.value.hint


@pytest.mark.parametrize("text", ["[", "a: b", "kiln_machine_types:\n- {provider: x}\n"])
def test_an_invalid_table_is_refused(text: str, tmp_path: Path) -> None:
    path = tmp_path / "machine_types.yml"
    path.write_text(text)
    with pytest.raises(MalformedYaml, match="is not a table of machine types"):
        choice.read_machine_types(path)
