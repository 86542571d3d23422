"""A package is built again from what its record says, and only from the recipe that it was built from."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from kiln.base.errors import ProvenanceBroken
from kiln.publish.rebuild import recorded_build_variables, recorded_image_name, require_same_recipe
from kiln.state.store import cache
from tests import builders

if TYPE_CHECKING:
    from pathlib import Path

    from kiln.recipe.feedstock import Feedstock


@pytest.fixture
def feedstock(tmp_path: Path) -> Feedstock:
    return builders.feedstock(tmp_path, "package:\n  name: a\n  version: 1\n")


def record(feedstock: Feedstock, **changes: Any) -> dict[str, Any]:
    """Return the record of a package of a feedstock."""
    texts = {name: name for name in ("config", "container", "engine", "file", "sha256")}
    return {**texts, "image": None, "recipe": cache.recipe_digest(feedstock), **changes}


def test_the_variables_of_a_build_are_those_of_its_record_and_absent_ones_stay_unset() -> None:
    values = {"commit": "c0ffee", "remote": "https://a.org/f", "extra": {"flow_run_id": "7"}, "epoch": 1700000000}
    assert recorded_build_variables(values) == {
        "sha": "c0ffee",
        "remote_url": "https://a.org/f",
        "flow_run_id": "7",
        "SOURCE_DATE_EPOCH": "1700000000",
    }
    assert recorded_build_variables({"commit": None}) == {}


@pytest.mark.parametrize(
    ("image", "name"),
    [(None, None), ("", None), (f"quay.io/a:1@sha256:{'5' * 64}", "quay.io/a:1"), ("a:1@x, b:1@y", None)],
)
def test_the_image_of_a_record_is_used_where_the_run_had_one(image: str | None, name: str | None) -> None:
    assert recorded_image_name({"image": image}) == name


def test_the_recipe_of_the_record_is_accepted(feedstock: Feedstock) -> None:
    require_same_recipe(feedstock, record(feedstock))
    require_same_recipe(feedstock, record(feedstock, extra={}, commit=None))


@pytest.mark.parametrize(
    ("commit", "hint"),
    [("c0ffee", "git checkout c0ffee"), (None, "restore the recipe as it was; its commit was not recorded")],
)
def test_another_recipe_is_refused_with_the_commit_to_check_out(
    feedstock: Feedstock, commit: str | None, hint: str
) -> None:
    former = record(feedstock, commit=commit, file="a-1-0.conda")
    feedstock.meta.write_text("package:\n  name: a\n  version: 2\n")
    with pytest.raises(ProvenanceBroken, match=r"is not the one that a-1-0\.conda was built from") as caught:
        require_same_recipe(feedstock, former)
    assert caught.value.why
    assert caught.value.hint == hint


def test_a_record_that_lacks_fields_is_refused_with_their_names(feedstock: Feedstock) -> None:
    fields = record(feedstock)
    del fields["engine"], fields["container"]
    with pytest.raises(ProvenanceBroken, match="the record lacks container, engine"):
        require_same_recipe(feedstock, fields)


@pytest.mark.parametrize(
    ("changes", "name"),
    [({"engine": None}, "engine"), ({"image": 7}, "image"), ({"commit": ["c"]}, "commit"), ({"extra": "x"}, "extra")],
)
def test_a_record_with_invalid_values_is_refused(feedstock: Feedstock, changes: dict[str, Any], name: str) -> None:
    with pytest.raises(ProvenanceBroken, match=f"the record is invalid: {name} has an invalid value"):
        require_same_recipe(feedstock, record(feedstock, **changes))
