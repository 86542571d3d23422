"""The journal of a publication under way."""

from __future__ import annotations

import json

import pytest

from kiln.base.errors import BrokenIndex
from kiln.publish.model import Journal, PublicationPhase

JOURNAL = Journal(id="x", packages={"noarch/a-1-0.conda": "ab"}, fresh=("noarch/a-1-0.conda",), aside="trial")


def test_uploads_are_recorded_once_and_in_order() -> None:
    brought = JOURNAL.with_uploads("trial", ["noarch/a-1-0.conda"]).with_uploads("release", ["noarch/a-1-0.conda"])
    again = Journal.parse(brought.with_uploads("trial", ["noarch/a-1-0.conda"]).with_promoting_phase().to_json_bytes())
    assert again.brought == (("trial", "noarch/a-1-0.conda"), ("release", "noarch/a-1-0.conda"))
    assert again.uploaded_paths("release") == ("noarch/a-1-0.conda",)
    assert (again.phase, again.aside) == (PublicationPhase.PROMOTING, "trial")


@pytest.mark.parametrize("path", ["../a-1-0.conda", "noarch/../../a", "a-1-0.conda", ".kiln/journal.json"])
def test_a_journal_names_no_places_but_those_of_packages(path: str) -> None:
    for field in ({"fresh": [path]}, {"brought": [["release", path]]}):
        told = {**json.loads(JOURNAL.to_json_bytes()), **field}
        with pytest.raises(BrokenIndex):
            Journal.parse(json.dumps(told).encode())


def test_a_journal_of_a_folder_or_bucket_names_no_server() -> None:
    told = json.loads(JOURNAL.to_json_bytes())
    del told["aside"], told["brought"]
    assert Journal.parse(json.dumps(told).encode()).brought == ()
