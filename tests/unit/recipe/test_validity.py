"""Rendered packages that conda-build refuses are refused, with the place."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from kiln import expand, render
from kiln.errors import RecipeFault
from kiln.recipe.validity import spec_fault
from tests.feedstocks import written

if TYPE_CHECKING:
    from pathlib import Path

    from kiln.model.feedstock import Feedstock

PACKAGE = "package:\n  name: a\n  version: 1\n"
ONE = "  - name: {}\n    requirements:\n      {}:\n        - {}\n"
TWO = "outputs:\n" + ONE.format("b", "run", "c") + ONE.format("c", "host", "b")


def rendered(folder: Path, meta: str) -> list[dict[str, Any]]:
    feedstock = written(folder, meta)
    (config,) = expand.configs(feedstock)
    return render.as_json(render.render(feedstock, config))


@pytest.mark.parametrize(
    ("meta", "what", "line"),
    [
        ("package:\n  name: a\n", "a has no version", 1),
        ("package:\n  name: a\n  version: .1\n", "a has the version '.1'", 1),
        ("package:\n  name: a\noutputs:\n  - name: b\n", "b has no version", 3),
        (f"{PACKAGE}build:\n  noarch: none\n", "noarch is 'none'", 4),
        (f"{PACKAGE}requirements:\n  run:\n    - a >=1\n", "'a >=1' in requirements/run", 4),
        (f"{PACKAGE}requirements:\n  host:\n    - b >=1,,<2\n", "'b >=1,,<2' in requirements/host", 4),
        (f"{PACKAGE}requirements:\n  run_constrained:\n    - b >=1.0<2\n", "in requirements/run_constrained", 4),
        (f"{PACKAGE}requirements:\n  run:\n    -\n    - b\n", "requirements/run has an empty item", 4),
        (f"{PACKAGE}outputs:\n  - name: b\n    requirements:\n      run:\n        -\n", "has an empty item", 4),
        (PACKAGE + TWO, "the outputs [bc] and [bc] require each other", 4),
        (f"{PACKAGE}outputs:\n  - name: b\n    target: ../up\n", "target is '../up'", 4),
    ],
)
def test_an_invalid_package_is_refused(tmp_path: Path, meta: str, what: str, line: int) -> None:
    with pytest.raises(RecipeFault, match=what) as caught:
        rendered(tmp_path, meta)
    assert caught.value.at is not None
    assert caught.value.at.line == line


READING = """\
{% set data = load_file_data("pyproject.json") %}
package:
  name: a
  version: {{ data.get("version") }}
source:
  SOURCE
about:
  summary: {{ load_file_regex("pyproject.json", "v[a-z]+n").group() if data else "" }}
"""


def test_a_local_source_is_read(tmp_path: Path) -> None:
    feedstock = written(
        tmp_path, READING.replace("SOURCE", "path: src"), files={"recipe/src/pyproject.json": '{"version": "1.5"}'}
    )
    (config,) = expand.configs(feedstock)
    (output,) = render.render(feedstock, config).outputs
    assert (output.version, output.about["summary"]) == ("1.5", "version")


def require_refused(feedstock: Feedstock) -> None:
    """Require that a version 'None' is rendered, as by conda-build before it has the source, and not built."""
    (config,) = expand.configs(feedstock)
    renderings = [render.render(feedstock, config)]
    assert renderings[0].outputs[0].version == "None"
    with pytest.raises(RecipeFault, match="a has the version 'None'") as caught:
        render.require_supported(renderings, own_engine=True)
    assert "local folder" in caught.value.why
    render.require_supported(renderings, own_engine=False)


@pytest.mark.parametrize("source", ["url: https://a.org/a.tar.gz", "path: ../../outside", "path: missing"])
def test_a_version_that_no_local_source_has_is_refused(tmp_path: Path, source: str) -> None:
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "pyproject.json").write_text('{"version": "1.5"}')
    require_refused(written(tmp_path / "feedstock", READING.replace("SOURCE", source)))


def test_a_link_out_of_the_feedstock_is_not_read(tmp_path: Path) -> None:
    (tmp_path / "secret.json").write_text('{"version": "1.5"}')
    source = tmp_path / "feedstock" / "recipe" / "src"
    source.mkdir(parents=True)
    (source / "pyproject.json").symlink_to(tmp_path / "secret.json")
    require_refused(written(tmp_path / "feedstock", READING.replace("SOURCE", "path: src")))


def test_an_output_that_names_itself_is_rendered_without_it(tmp_path: Path) -> None:
    (output,) = rendered(tmp_path, f"{PACKAGE}outputs:\n  - name: b\n    requirements:\n      run:\n        - b\n")
    assert output["requirements"]["run"] == []


# The answers of conda 26.7's MatchSpec.
VALID = """\
a; a 1; a 1.*; a 1.2 py*_0; a=1; a=1=b; a==1; a >= 1; a >=1, <2; a >=1 b; a<2; a!=1; a ~=1.2; a *; a * cpu*; a =*=cuda
a 1.2.*,!=1.2.3; conda-forge::a; conda-forge::a >=1; a[version=1]; a[version='>=1,<2',build=x]; a 1|2
__glibc >=2.17,<3.0.a0; a 1!2.0; a 1.0+local; *; a* 1; A; _a; a >=1.*; a =1.*; a 2.7*; a >=py312; a 9e; a#b; a =<2
python_abi 3.11.* *_cp311; mkl >=2023.2.0,<2024.0a0; libfaiss =*=*_cuda; a >=1|<0"""
INVALID = """\
a >=1,,<2; foo@bar; >=1.0; a >=1.0<2; a {; a { b }; a >=; a <; a !; a 1..2; a 1.; a .1; a -1; a >=1 <2; a 1,; a ,1
a 1%; a 1&2; a "1"; a '>1'; a/b; a >=1,<2|; pillow-heif  >=0.10.0,<1.0.0<py312|>=0.13.0,<1.0.0>=py312"""


@pytest.mark.parametrize("spec", VALID.replace("\n", "; ").split("; "))
def test_a_match_spec_of_conda_is_valid(spec: str) -> None:
    assert spec_fault(spec) == ""


@pytest.mark.parametrize("spec", INVALID.replace("\n", "; ").split("; "))
def test_what_conda_refuses_as_a_match_spec_is_invalid(spec: str) -> None:
    assert spec_fault(spec) != ""


def test_text_in_the_place_of_a_list_stays_text(tmp_path: Path) -> None:
    test = "test:\n  imports: i\n  commands: c\n  requires: r\n"
    (output,) = rendered(tmp_path / "a", f"{PACKAGE}build:\n  run_exports: x\n  noarch: true\n{test}")
    assert (output["run_exports"], output["noarch"]) == ("x", True)
    assert output["test"] == {"imports": "i", "commands": "c", "requires": "r"}
    (output,) = rendered(tmp_path / "b", f"{PACKAGE}build:\n  run_exports:\n    weak: x\n    strong:\n      - y\n")
    assert output["run_exports"] == {"weak": "x", "strong": ["y"]}


def test_the_target_of_an_output_is_its_subdir(tmp_path: Path) -> None:
    (output,) = rendered(tmp_path, f"{PACKAGE}outputs:\n  - name: b\n    target: win-64\n")
    assert output["subdir"] == "win-64"
