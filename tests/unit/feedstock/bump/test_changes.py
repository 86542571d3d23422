"""Each hash is found where it is written out, however it gets to its source, and is the one of the new file."""

from __future__ import annotations

import hashlib
import re
from typing import TYPE_CHECKING

import pytest

from kiln.base.errors import DownloadFailed, HashMismatch, RecipeFault
from tests.bumping import OLD, bumped, changed_lines, feedstock, released

if TYPE_CHECKING:
    from pathlib import Path

HEAD = '{% set version = "1.0" %}\npackage:\n  name: a\n  version: {{ version }}\nsource:\n'
OTHER = hashlib.sha256(b"other").hexdigest()
THIRD = hashlib.sha256(b"third").hexdigest()


def test_a_hash_of_each_kind_follows_its_file(tmp_path: Path) -> None:
    hashes = released(tmp_path / "up", "a-2_0.tar")
    data = (tmp_path / "up" / "a-2_0.tar").read_bytes()
    md5, sha512 = hashlib.md5(data).hexdigest(), hashlib.sha512(data).hexdigest()
    url = f'{(tmp_path / "up").as_uri()}/a-{{{{ version.replace(".", "_") }}}}.tar'
    text = f"{HEAD}  url: {url}\n  sha256: {OLD}\n  md5: '{'0' * 32}'\n  sha512: \"{'1' * 128}\"\n  folder: {OLD}\n"
    changed = changed_lines(bumped(feedstock(tmp_path / "f", text), "2.0"))
    assert list(changed) == [1, 7, 8, 9]
    assert [changed[line] for line in (7, 8, 9)] == [
        f"sha256: {hashes['a-2_0.tar']}",
        f"md5: '{md5}'",
        f'sha512: "{sha512}"',
    ]


def test_sources_under_selectors_get_their_own_hashes_also_of_platforms_without_a_config(tmp_path: Path) -> None:
    names = [f"a-2.0-{kind}.tar" for kind in ("linux", "arm", "win", "cuda")]
    hashes = released(tmp_path / "up", *names)
    up = (tmp_path / "up").as_uri()
    text = (
        '{% set kind = "linux" %}\n{% set kind = "arm" %}  # [osx and arm64]\n' + HEAD + f"  - url: {up}/"
        "a-{{ version }}-{{ kind }}.tar\n"
        f"    sha256: {OLD}  # [not (osx and arm64)]\n    sha256: {OTHER}  # [osx and arm64]\n"
        f"  - url: {up}/a-{{{{ version }}}}-win.tar  # [win]\n    sha256: {THIRD}  # [win]\n"
        f'  - url: {up}/a-{{{{ version }}}}-cuda.tar  # [cuda == "12.9"]\n    sha256: {THIRD}  # [cuda == "12.9"]\n'
    )
    changed = changed_lines(bumped(feedstock(tmp_path / "f", text), "2.0"))
    assert changed == {
        3: '{% set version = "2.0" %}',
        9: f"sha256: {hashes[names[0]]}  # [not (osx and arm64)]",
        10: f"sha256: {hashes[names[1]]}  # [osx and arm64]",
        12: f"sha256: {hashes[names[2]]}  # [win]",
        14: f'sha256: {hashes[names[3]]}  # [cuda == "12.9"]',
    }


def test_a_placeholder_becomes_a_hash_also_under_a_selector_of_python(tmp_path: Path) -> None:
    hashes = released(tmp_path / "up", "a-2.0.tar", "b-2.0.tar")
    up = (tmp_path / "up").as_uri()
    text = f"{HEAD}  - url: {up}/a-{{{{ version }}}}.tar\n    sha256: TODO\n"
    text += f"  - url: {up}/b-{{{{ version }}}}.tar  # [py < 39]\n    sha256: 'TODO'  # [py < 39]\n"
    changed = changed_lines(bumped(feedstock(tmp_path / "f", text), "2.0"))
    assert changed == {
        1: '{% set version = "2.0" %}',
        7: f"sha256: {hashes['a-2.0.tar']}",
        9: f"sha256: '{hashes['b-2.0.tar']}'  # [py < 39]",
    }


def test_hashes_in_variables_tables_and_outputs_are_found(tmp_path: Path) -> None:
    hashes = released(tmp_path / "up", "a-2.0.tar", "b-2.0-linux-64.tar", "b-2.0-osx-64.tar", "c-2.0.tar")
    up = (tmp_path / "up").as_uri()
    text = (
        f'{{% set sha256 = "{OLD}" %}}\n{{% set sums = {{"linux-64": "{OTHER}", "osx-64": "{THIRD}"}} %}}\n'
        + HEAD
        + f"  - url: {up}/a-{{{{ version }}}}.tar\n    sha256: {{{{ sha256 }}}}\n"
        f"  - url: {up}/b-{{{{ version }}}}-{{{{ target_platform }}}}.tar  # [linux64 or (osx and x86_64)]\n"
        "    sha256: {{ sums[target_platform] }}  # [linux64 or (osx and x86_64)]\n"
        "outputs:\n  - name: c\n    source:\n"
        f"      url: {up}/c-{{{{ version }}}}.tar\n      sha256: {OLD}\n"
    )
    changed = changed_lines(bumped(feedstock(tmp_path / "f", text), "2.0"))
    assert changed == {
        1: f'{{% set sha256 = "{hashes["a-2.0.tar"]}" %}}',
        2: f'{{% set sums = {{"linux-64": "{hashes["b-2.0-linux-64.tar"]}", '
        f'"osx-64": "{hashes["b-2.0-osx-64.tar"]}"}} %}}',
        3: '{% set version = "2.0" %}',
        16: f"sha256: {hashes['c-2.0.tar']}",
    }


def test_sources_of_a_recipe_yaml_in_branches_lists_and_staging_outputs(tmp_path: Path) -> None:
    hashes = released(tmp_path / "up", "a-2.0.tar", "b-2.0.tar", "c-2.0.tar")
    up = (tmp_path / "up").as_uri()
    text = (
        f'context:\n  version: "1.0"\n  sum: {OTHER}\nrecipe:\n  name: a\n  version: ${{{{ version }}}}\nsource:\n'
        f"  - url:\n      - {up}/missing-${{{{ version }}}}.tar\n      - {up}/a-${{{{ version }}}}.tar\n"
        f"    sha256: {OLD}\n  - if: win\n    then:\n      url: {up}/b-${{{{ version }}}}.tar\n"
        f"      sha256: ${{{{ sum }}}}\n    else:\n      - path: here\n"
        "outputs:\n  - staging:\n      name: s\n    source:\n"
        f"      url: {up}/c-${{{{ version }}}}.tar\n      md5: {'0' * 32}\n"
        "  - package:\n      name: p\n    inherit: s\n"
    )
    plan = bumped(feedstock(tmp_path / "f", text, v1=True), "2.0")
    changed = changed_lines(plan)
    assert changed.pop(2) == 'version: "2.0"'
    assert changed.pop(3) == f"sum: {hashes['b-2.0.tar']}"
    assert changed.pop(11) == f"sha256: {hashes['a-2.0.tar']}"
    md5 = hashlib.md5((tmp_path / "up" / "c-2.0.tar").read_bytes()).hexdigest()
    assert changed == {23: f"md5: {md5}"}
    assert len(plan.notes) == 1
    assert plan.notes[0].endswith("missing-2.0.tar: no such file")


def test_a_source_with_a_version_of_its_own_stays_and_is_not_downloaded(tmp_path: Path) -> None:
    hashes = released(tmp_path / "up", "a-2.0.tar")
    up = (tmp_path / "up").as_uri()
    text = (
        f"{HEAD}  - url: {up}/a-{{{{ version }}}}.tar\n    sha256: {OLD}\n  - url: {up}/no-7.tar\n    sha256: {OTHER}\n"
    )
    plan = bumped(feedstock(tmp_path / "f", text), "2.0")
    assert changed_lines(plan) == {1: '{% set version = "2.0" %}', 7: f"sha256: {hashes['a-2.0.tar']}"}
    assert plan.unchanged == (f"{up}/no-7.tar",)


@pytest.mark.parametrize("v1", [False, True])
def test_a_url_that_writes_the_version_out_gets_the_new_one(v1: bool, tmp_path: Path) -> None:
    hashes = released(tmp_path / "up", "a-2.0.tar")
    up = (tmp_path / "up").as_uri()
    source = (
        f"source:\n  url: {up}/a-1.0.tar\n  sha256: {OLD}\nabout:\n  {'homepage' if v1 else 'home'}: http://a/1.0\n"
    )
    text = f"package:\n  name: a\n  version: '1.0'\n{source}"
    assert changed_lines(bumped(feedstock(tmp_path / "f", text, v1=v1), "2.0")) == {
        3: "version: '2.0'",
        5: f"url: {up}/a-2.0.tar",
        6: f"sha256: {hashes['a-2.0.tar']}",
    }


def test_all_sources_that_cannot_be_downloaded_are_named(tmp_path: Path) -> None:
    released(tmp_path / "up", "a-2.0.tar")
    up = (tmp_path / "up").as_uri()
    sources = [f"  - url: {up}/{name}-{{{{ version }}}}.tar\n    sha256: {OLD}\n" for name in ("b", "a", "c")]
    with pytest.raises(DownloadFailed) as caught:
        bumped(feedstock(tmp_path / "f", HEAD + "".join(sources)), "2.0")
    message = str(caught.value)
    assert message.count("no such file") == 2
    assert "b-2.0.tar" in message
    assert "c-2.0.tar" in message


def test_a_hash_that_two_different_files_share_is_refused(tmp_path: Path) -> None:
    released(tmp_path / "up", "a-2.0.tar", "b-2.0.tar")
    up = (tmp_path / "up").as_uri()
    text = f'{{% set sum = "{OLD}" %}}\n{HEAD}' + "".join(
        f"  - url: {up}/{name}-{{{{ version }}}}.tar\n    sha256: {{{{ sum }}}}\n" for name in "ab"
    )
    with pytest.raises(HashMismatch, match="different sources share a hash"):
        bumped(feedstock(tmp_path / "f", text), "2.0")


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (
            f"  url: file:///a-{{{{ version }}}}.tar\n  sha256: {{{{ '{OLD}'[:32] }}}}{{{{ '{OLD}'[32:] }}}}\n",
            "recipe/meta.yaml:7:3: the sha256 of file:///a-2.0.tar is not written out in the recipe",
        ),
        (
            f"  url: file:///a-{{{{ version }}}}.tar\n  sha256: {OLD}\n  sha256: {OTHER}  # [False]\n",
            f"recipe/meta.yaml:8:11: the hash {OTHER[:16]}... belongs to no source",
        ),
        (
            f"  url: file:///a.tar\n  sha256: {OLD}\n",
            "recipe/meta.yaml:5:1: no source depends on the version",
        ),
    ],
    ids=["computed", "unreached", "unversioned"],
)
def test_what_has_no_answer_is_refused_by_its_line(source: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(RecipeFault, match=re.escape(message)):
        bumped(feedstock(tmp_path, HEAD + source), "2.0")
