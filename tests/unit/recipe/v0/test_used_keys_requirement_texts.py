from __future__ import annotations

import pytest

from kiln.base.errors import RecipeFault
from kiln.recipe.v0.used_keys import requirements_by_section


def test_a_section_that_packages_do_not_have_may_hold_anything() -> None:
    assert requirements_by_section({"host": "zlib", "run_exports": [{"a": "b"}]})["host"] == ["zlib"]


def test_a_mapping_is_not_a_requirement() -> None:
    with pytest.raises(RecipeFault):
        requirements_by_section({"run": [{"a": "b"}]})
