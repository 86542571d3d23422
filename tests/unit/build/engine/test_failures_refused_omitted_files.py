"""Files that the engine would leave out of a package end its build, with their names."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from kiln.base.errors import BuildFailed
from kiln.build.engine import failures
from kiln.build.engine.failures import ENGINE_FOLDER
from kiln.build.engine.worker import refuse_unusable_files

if TYPE_CHECKING:
    from pathlib import Path

FILES = (
    *("a/x.py", "a/x.so", "a/y.py", "a/z.pyd", "a/z.py", "a/x.cpython-311.so", "CACHEDIR.TAG", "a/CACHEDIR.TAG"),
    *("a/conda-meta/history", "conda-meta/history", "dep/x.py", "dep/x.so", "dep/timeout.py"),
)


@pytest.fixture
def prefix(tmp_path: Path) -> Path:
    """Return a prefix with files of a script, and with those of a package ``dep`` that was there before."""
    prefix = tmp_path / ENGINE_FOLDER / "rattler-build_app" / "host_env_placehold_placehold"
    for name in FILES:
        (prefix / name).parent.mkdir(parents=True, exist_ok=True)
        (prefix / name).touch()
    (prefix / "a" / "y.so").symlink_to("nowhere")
    record = {"name": "dep", "files": [name for name in FILES if name.startswith("dep/")]}
    (prefix / "conda-meta" / "dep-1-0.json").write_text(json.dumps(record))
    return prefix


def test_a_package_without_files_of_its_script_is_refused_with_their_names(prefix: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="leaves out") as caught:
        refuse_unusable_files(tmp_path, {"build": {}}, by_conda_build_rules=False)
    assert str(caught.value) == (
        "rattler-build leaves out a/conda-meta/history (it is in a folder conda-meta), a/x.py (x.so is next to it), "
        "a/z.py (z.pyd is next to it)"
    )
    kind = failures.classify_failure(str(caught.value).replace("a/x.py", "a/timeout.py"), "")
    assert kind.error is BuildFailed, "the name of a file is not the engine's message"
    assert "remove the files in the script" in kind.hint
    refuse_unusable_files(tmp_path, {"build": {"files": ["a/y.py"]}}, by_conda_build_rules=False)
    many = [f"{number} (w)" for number in range(7)]
    assert failures.message_naming_files(failures.LEFT_OUT_TEXT, many).endswith("4 (w) and 2 more")


def test_tags_of_caches_are_named_in_the_log(prefix: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("a/x.py", "a/z.py", "a/conda-meta/history"):
        (prefix / name).unlink()
    refuse_unusable_files(tmp_path, {"build": {}}, by_conda_build_rules=False)
    assert [line.split(":")[0] for line in capsys.readouterr().out.splitlines()] == [
        "rattler-build leaves out CACHEDIR.TAG",
        "rattler-build leaves out a/CACHEDIR.TAG",
    ]
