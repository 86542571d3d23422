"""Each fault of a feedstock ends in one message with its place and what to do, and in an exit code of its own."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from kiln.base import errors
from tests import warm

if TYPE_CHECKING:
    import subprocess

    from kiln.base.errors import KilnError

ROOT = Path(__file__).parents[2]
META = "package:\n  name: app\n  version: 1\n"

# What is wrong, the recipe, its variants, the error, where it stands, and a word of the advice.
FAULTS: list[tuple[str, str, str, type[KilnError], str, str]] = [
    ("malformed YAML", META + "about: [unclosed\n", "", errors.MalformedYaml, "meta.yaml:", ""),
    (
        "unknown selector name",
        META + "build:\n  skip: true  # [lunix]\n",
        "",
        errors.SelectorFault,
        "meta.yaml:5:",
        "linux",
    ),
    (
        "undefined variable",
        "{% set version = 1 %}\npackage:\n  name: app\n  version: {{ versoin }}\n",
        "",
        errors.TemplateFault,
        "meta.yaml:4:",
        "did you mean 'version'",
    ),
    (
        "reach into Python",
        META + "about:\n  summary: {{ ''.__class__.__mro__ }}\n",
        "",
        errors.UnsafeTemplate,
        "meta.yaml:5:",
        "",
    ),
    (
        "reach into the file system",
        META + "about:\n  summary: {{ load_file_data('/etc/passwd') }}\n",
        "",
        errors.UnsafeTemplate,
        "meta.yaml:5:",
        "",
    ),
    (
        "zip_keys of unequal length",
        META,
        "zip_keys:\n  -\n    - left\n    - right\nleft:\n  - 1\n  - 2\nright:\n  - 1\n  - 2\n  - 3\n",
        errors.VariantFault,
        "conda_build_config.yaml:8:",
        "the same number of values",
    ),
    (
        "a list that reads as a selector",
        META,
        "left: [1, 2]\n",
        errors.VariantFault,
        "conda_build_config.yaml:1:",
        "a line of its own",
    ),
]


def feedstock(folder: Path, meta: str, variants: str) -> Path:
    """Write a feedstock of one recipe and one variant file."""
    (folder / "recipe").mkdir()
    (folder / "recipe" / "meta.yaml").write_text(meta)
    (folder / "recipe" / "conda_build_config.yaml").write_text(variants)
    (folder / "conda-forge.yml").write_text("{}\n")
    return folder


def kiln(root: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Run a kiln command on a feedstock."""
    return warm.kiln("-C", str(root), *words)


@pytest.mark.parametrize(
    ("meta", "variants", "error", "place", "advice"), [fault[1:] for fault in FAULTS], ids=[f[0] for f in FAULTS]
)
def test_a_fault_of_the_feedstock(
    tmp_path: Path, meta: str, variants: str, error: type[KilnError], place: str, advice: str
) -> None:
    ended = kiln(feedstock(tmp_path, meta, variants), "rerender")
    assert ended.returncode == error.exit_code, ended.stderr
    assert place in ended.stderr
    assert advice in ended.stderr
    assert "Traceback" not in ended.stderr
    assert not (tmp_path / ".ci_support").exists()


def test_an_unknown_config_names_those_near(tmp_path: Path) -> None:
    root = feedstock(tmp_path, META, "")
    assert kiln(root, "rerender").returncode == 0
    ended = kiln(root, "build", "--rehearse", "linux_46_")
    assert ended.returncode == errors.UnknownConfig.exit_code
    assert "linux_64_" in ended.stderr


def test_a_folder_that_is_not_a_feedstock_is_reported(tmp_path: Path) -> None:
    ended = kiln(tmp_path, "matrix")
    assert ended.returncode == errors.FeedstockNotFound.exit_code
    assert "recipe/meta.yaml" in ended.stderr
