"""A package's metadata states facts of the build, not what its recipe says of itself."""

from __future__ import annotations

import dataclasses

from kiln.build.engine import metadata
from tests.releases import candidate


def test_a_recipe_cannot_state_the_commit_it_was_built_from() -> None:
    output = candidate().output
    assert output is not None
    said = {"sha": "1" * 40, "remote_url": "https://a.example/b", "flow_run_id": "1", "recipe-maintainers": ["me"]}
    edits = metadata.about_and_hash_edits(dataclasses.replace(output, extra=said))
    assert edits["extra"] == {"recipe-maintainers": ["me"]}
