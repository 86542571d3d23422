from __future__ import annotations

import sys
from pathlib import Path

import pytest

from kiln.feedstock.lint import check
from tests.unit.feedstock.lint.recipes import META, feedstock

pytestmark = pytest.mark.processes
PROGRAM = Path(sys.executable).with_name("shellcheck")
SCRIPT = "#!/bin/bash\nfor f in $(ls *.so); do rm $f; done\nif [ $x = 1 ]; then cd foo; fi\n"


def program(folder: Path, text: str) -> Path:
    path = folder / "shellcheck"
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


@pytest.mark.skipif(not PROGRAM.exists(), reason="shellcheck is not in this environment")
def test_warnings_have_places_and_ids_of_shellcheck(tmp_path: Path) -> None:
    subject = feedstock(tmp_path, META, {"recipe/build.sh": SCRIPT})
    results = check.shellcheck_messages(subject, PROGRAM, enabled=False)
    assert {message.id for message in results} == {"kiln-shellcheck"}
    assert "recipe/build.sh:3:21" in {str(message.at) for message in results}
    everything = check.shellcheck_messages(subject, PROGRAM, enabled=True)
    assert {message.id for message in everything} == {"R-042"}
    assert len(everything) > len(results)


def test_a_feedstock_without_scripts_runs_nothing(tmp_path: Path) -> None:
    assert check.shellcheck_messages(feedstock(tmp_path, META), Path("/nowhere"), enabled=True) == []


def test_a_linked_script_is_not_read(tmp_path: Path) -> None:
    subject = feedstock(tmp_path / "a", META)
    (subject.recipe / "build.sh").symlink_to("/etc/passwd")
    assert check.shellcheck_messages(subject, Path("/nowhere"), enabled=True) == []


@pytest.mark.parametrize("answer", ["exit 2", "echo nothing", "echo 1"])
def test_a_failure_is_a_message(tmp_path: Path, answer: str) -> None:
    subject = feedstock(tmp_path / "a", META, {"recipe/build.sh": SCRIPT})
    [message] = check.shellcheck_messages(subject, program(tmp_path, answer), enabled=True)
    assert message.id == "R-043"
