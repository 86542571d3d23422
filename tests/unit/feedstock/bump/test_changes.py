"""Each hash is found where it is written out, however it gets to its source, and is the one of the new file."""

from __future__ import annotations

import hashlib
import re
from typing import TYPE_CHECKING

import pytest

from kiln.base.errors import DownloadFailed, HashMismatch, KilnError, RecipeFault, TemplateFault, UsageError
from kiln.feedstock.bump import bump
from tests.bumping import OLD, bumped, changed_lines, feedstock, released

if TYPE_CHECKING:
    from pathlib import Path


HEAD = '{% set version = "1.0" %}\npackage:\n  name: a\n  version: {{ version }}\nsource:\n'
OTHER = hashlib.sha256(b"other").hexdigest()
THIRD = hashlib.sha256(b"third").hexdigest()


@pytest.fixture
def up(tmp_path: Path) -> str:
    """The address of the folder of released files."""
    return (tmp_path / "up").as_uri()


def test_a_hash_of_each_kind_follows_its_file(up: str, tmp_path: Path) -> None:
    hashes = released(tmp_path / "up", "a-2_0.tar")
    data = (tmp_path / "up" / "a-2_0.tar").read_bytes()
    md5, sha512 = hashlib.md5(data).hexdigest(), hashlib.sha512(data).hexdigest()
    url = f'{up}/a-{{{{ version.replace(".", "_") }}}}.tar'
    text = f"{HEAD}  url: {url}\n  sha256: {OLD}\n  md5: '{'0' * 32}'\n  sha512: \"{'1' * 128}\"\n  folder: {OLD}\n"
    changed = changed_lines(bumped(feedstock(tmp_path / "f", text), "2.0"))
    assert list(changed) == [1, 7, 8, 9]
    assert [changed[line] for line in (7, 8, 9)] == [
        f"sha256: {hashes['a-2_0.tar']}",
        f"md5: '{md5}'",
        f'sha512: "{sha512}"',
    ]


def test_sources_under_selectors_get_their_own_hashes_also_of_platforms_without_a_config(
    up: str, tmp_path: Path
) -> None:
    names = [f"a-2.0-{kind}.tar" for kind in ("linux", "arm", "win", "cuda")]
    hashes = released(tmp_path / "up", *names)
    text = (
        '{% set kind = "linux" %}\n{% set kind = "arm" %}  # [osx and arm64]\n' + HEAD + f"  - url: {up}/"
        "a-{{ version }}-{{ kind }}.tar\n"
        f"    sha256: {OLD}  # [not (osx and arm64)]\n    sha256: {OTHER}  # [osx and arm64]\n"
        f"  - url: {up}/a-{{{{ version }}}}-win.tar  # [win]\n    sha256: {THIRD}  # [win]\n"
        f'  - url: {up}/a-{{{{ version }}}}-cuda.tar  # [cuda == "12.9"]\n    sha256: {THIRD}  # [cuda == "12.9"]\n'
    )
    assert changed_lines(bumped(feedstock(tmp_path / "f", text), "2.0")) == {
        3: '{% set version = "2.0" %}',
        9: f"sha256: {hashes[names[0]]}  # [not (osx and arm64)]",
        10: f"sha256: {hashes[names[1]]}  # [osx and arm64]",
        12: f"sha256: {hashes[names[2]]}  # [win]",
        14: f'sha256: {hashes[names[3]]}  # [cuda == "12.9"]',
    }


def test_a_placeholder_becomes_a_hash_also_under_a_selector_of_python(up: str, tmp_path: Path) -> None:
    hashes = released(tmp_path / "up", "a-2.0.tar", "b-2.0.tar")
    text = f"{HEAD}  - url: {up}/a-{{{{ version }}}}.tar\n    sha256: TODO\n"
    text += f"  - url: {up}/b-{{{{ version }}}}.tar  # [py < 39]\n    sha256: 'TODO'  # [py < 39]\n"
    assert changed_lines(bumped(feedstock(tmp_path / "f", text), "2.0")) == {
        1: '{% set version = "2.0" %}',
        7: f"sha256: {hashes['a-2.0.tar']}",
        9: f"sha256: '{hashes['b-2.0.tar']}'  # [py < 39]",
    }


def test_hashes_in_variables_tables_and_outputs_are_found(up: str, tmp_path: Path) -> None:
    hashes = released(tmp_path / "up", "a-2.0.tar", "b-2.0-linux-64.tar", "b-2.0-osx-64.tar", "c-2.0.tar")
    text = (
        f'{{% set sha256 = "{OLD}" %}}\n{{% set sums = {{"linux-64": "{OTHER}", "osx-64": "{THIRD}"}} %}}\n'
        + HEAD
        + f"  - url: {up}/a-{{{{ version }}}}.tar\n    sha256: {{{{ sha256 }}}}\n"
        f"  - url: {up}/b-{{{{ version }}}}-{{{{ target_platform }}}}.tar  # [linux64 or (osx and x86_64)]\n"
        "    sha256: {{ sums[target_platform] }}  # [linux64 or (osx and x86_64)]\n"
        "outputs:\n  - name: c\n    source:\n"
        f"      url: {up}/c-{{{{ version }}}}.tar\n      sha256: {OLD}\n"
    )
    assert changed_lines(bumped(feedstock(tmp_path / "f", text), "2.0")) == {
        1: f'{{% set sha256 = "{hashes["a-2.0.tar"]}" %}}',
        2: f'{{% set sums = {{"linux-64": "{hashes["b-2.0-linux-64.tar"]}", '
        f'"osx-64": "{hashes["b-2.0-osx-64.tar"]}"}} %}}',
        3: '{% set version = "2.0" %}',
        16: f"sha256: {hashes['c-2.0.tar']}",
    }


def test_sources_of_a_recipe_yaml_in_branches_lists_and_staging_outputs(up: str, tmp_path: Path) -> None:
    hashes = released(tmp_path / "up", "a-2.0.tar", "b-2.0.tar", "c-2.0.tar")
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


def test_a_source_with_a_version_of_its_own_stays_and_is_not_downloaded(up: str, tmp_path: Path) -> None:
    hashes = released(tmp_path / "up", "a-2.0.tar")
    text = (
        f"{HEAD}  - url: {up}/a-{{{{ version }}}}.tar\n    sha256: {OLD}\n  - url: {up}/no-7.tar\n    sha256: {OTHER}\n"
    )
    plan = bumped(feedstock(tmp_path / "f", text), "2.0")
    assert changed_lines(plan) == {1: '{% set version = "2.0" %}', 7: f"sha256: {hashes['a-2.0.tar']}"}
    assert plan.unchanged == (f"{up}/no-7.tar",)


@pytest.mark.parametrize("v1", [False, True])
def test_a_url_that_writes_the_version_out_gets_the_new_one(v1: bool, up: str, tmp_path: Path) -> None:
    hashes = released(tmp_path / "up", "a-2.0.tar")
    source = (
        f"source:\n  url: {up}/a-1.0.tar\n  sha256: {OLD}\nabout:\n  {'homepage' if v1 else 'home'}: http://a/1.0\n"
    )
    text = f"package:\n  name: a\n  version: '1.0'\n{source}"
    assert changed_lines(bumped(feedstock(tmp_path / "f", text, v1=v1), "2.0")) == {
        3: "version: '2.0'",
        5: f"url: {up}/a-2.0.tar",
        6: f"sha256: {hashes['a-2.0.tar']}",
    }


def test_all_sources_that_cannot_be_downloaded_are_named(up: str, tmp_path: Path) -> None:
    released(tmp_path / "up", "a-2.0.tar")
    sources = [f"  - url: {up}/{name}-{{{{ version }}}}.tar\n    sha256: {OLD}\n" for name in ("b", "a", "c")]
    with pytest.raises(DownloadFailed) as caught:
        bumped(feedstock(tmp_path / "f", HEAD + "".join(sources)), "2.0")
    assert str(caught.value).startswith(
        f"2 sources cannot be downloaded\n  why: no such file\n       {up}/b-2.0.tar\n       {up}/c-2.0.tar\n  try: "
    )


def test_a_hash_that_two_different_files_share_is_refused(up: str, tmp_path: Path) -> None:
    released(tmp_path / "up", "a-2.0.tar", "b-2.0.tar")
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
            f"recipe/meta.yaml:8:11: the source of the hash {OTHER[:16]}... is not found",
        ),
        (f"  url: file:///a.tar\n  sha256: {OLD}\n", "recipe/meta.yaml:5:1: no source depends on the version"),
    ],
)
def test_what_has_no_answer_is_refused_by_its_line(source: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(RecipeFault, match=re.escape(message)):
        bumped(feedstock(tmp_path, HEAD + source), "2.0")


def test_a_url_without_a_version_is_refused_in_the_words_of_the_format(tmp_path: Path) -> None:
    text = V1.format("  version: 1.0", "${{ version }}") + f"source:\n  url: file:///a.tar\n  sha256: {OLD}\n"
    with pytest.raises(RecipeFault, match="no source depends on the version") as refused:
        bumped(feedstock(tmp_path, text, v1=True), "2.0")
    assert "write ${{ version }} in the URL" in refused.value.hint


META = "package:\n  name: a\n  version: {}\nbuild:\n  number: 0\n"
V1 = "context:\n{}\n" + META


@pytest.mark.parametrize(
    ("text", "version", "changes"),
    [
        (META.format("1.2.3"), "2.0", {3: "version: 2.0"}),
        (META.format("'1.2.3'"), "2.0", {3: "version: '2.0'"}),
        ('{% set version = "1.2.3" %}\n' + META.format("{{ version }}"), "2.0", {1: '{% set version = "2.0" %}'}),
        ("{% set version = 1.2 %}\n" + META.format("{{ version }}"), "2.0.1", {1: '{% set version = "2.0.1" %}'}),
        ("{%- set version='1.2.3' -%}\n" + META.format("{{ version }}"), "2.0", {1: "{%- set version='2.0' -%}"}),
        (
            '# {% set version = "1.2.3" %}\n{% set version = "1.2.3" %}  # 1.2.3\n' + META.format("{{ version }}"),
            "2.0",
            {2: '{% set version = "2.0" %}  # 1.2.3'},
        ),
        (
            '{% set version = "2.30.4-1" %}\n' + META.format('{{ version|replace("-", ".") }}'),
            "2.31.0-1",
            {1: '{% set version = "2.31.0-1" %}'},
        ),
        (
            '{% set version = "1.3-4" %}\n' + META.format("{{ version|replace('-', '_') }}"),
            "1.4-0",
            {1: '{% set version = "1.4-0" %}'},
        ),
        (
            "{% set version = '1.3-1' %}\n" + META.format("{{ version|replace('-', '_') }}"),
            "1.3_2",
            {1: "{% set version = '1.3-2' %}"},
        ),
        (
            '{% set patch = "3" %}\n{% set version = "1.5.0" %}\n' + META.format("{{ version }}.{{ patch }}"),
            "1.6.1.5",
            {1: '{% set patch = "5" %}', 2: '{% set version = "1.6.1" %}'},
        ),
        (
            '{% set version = "1.2.3" %}\n' + META.format("{{ version }}.post0"),
            "1.2.4.post0",
            {1: '{% set version = "1.2.4" %}'},
        ),
        (
            '{% set version = "1.2.3" %}\n' + META.format("{{ version }}.post0"),
            "1.2.4",
            {1: '{% set version = "1.2.4" %}'},
        ),
        (
            '{% set version = environ.get("VERSION", "1.2.3") %}\n' + META.format("{{ version }}"),
            "2.0",
            {1: '{% set version = environ.get("VERSION", "2.0") %}'},
        ),
        (
            '{% set major = 1 %}\n{% set minor = "2" %}\n' + META.format('{{ major }}.{{ minor ~ ".3" }}'),
            "4.5.3",
            {1: "{% set major = 4 %}", 2: '{% set minor = "5" %}'},
        ),
        (
            '{% set other = "1.2.3" %}\n{% set v = {"version": "1.2.3"} %}\n' + META.format('{{ v["version"] }}'),
            "2.0",
            {2: '{% set v = {"version": "2.0"} %}'},
        ),
        (
            '{% set version = "1.0" %}  # [unix]\n{% set version = "1.0" %}  # [win]\n' + META.format("{{ version }}"),
            "2.0",
            {1: '{% set version = "2.0" %}  # [unix]', 2: '{% set version = "2.0" %}  # [win]'},
        ),
        (V1.format('  version: "1.2.3"', "${{ version }}"), "2.0", {2: 'version: "2.0"'}),
        (V1.format("  version: 1.2.3  # 1.2.3", "${{ version }}"), "2", {2: 'version: "2"  # 1.2.3'}),
        (V1.format("  unused: 1", "'1.2.3'"), "2.0", {5: "version: '2.0'"}),
        (V1.format("  major: 1\n  minor: '2'", '"${{ major }}.${{ minor }}"'), "4.5", {2: "major: 4", 3: "minor: '5'"}),
        (V1.format("  name: '1.2.3'\n  v: 1.2.3", "${{ v }}"), "2.0", {3: "v: 2.0"}),
    ],
)
def test_a_recipe_gets_another_version_and_nothing_else(
    text: str, version: str, changes: dict[int, str], tmp_path: Path
) -> None:
    case = feedstock(tmp_path, text, v1=text.startswith("context:"))
    assert changed_lines(bumped(case, version)) == changes


def test_a_version_that_is_computed_is_refused_by_its_line(tmp_path: Path) -> None:
    text = '{% set version = ["1", "2"] | join(".") | upper %}\n' + META.format('{{ version ~ "." ~ (2 + 1) }}')
    with pytest.raises(RecipeFault, match=re.escape("recipe/meta.yaml:1:8: the version is computed")):
        bumped(feedstock(tmp_path, text), "2.0")


@pytest.mark.parametrize("selector", ["", "  # [win]"])
def test_a_recipe_that_the_new_version_makes_invalid_is_refused_by_its_line(selector: str, tmp_path: Path) -> None:
    text = f'{{% set version = "1.2.3" %}}\n{{% set x, y, z = version.split(".") %}}{selector}\n'
    case = feedstock(tmp_path, text + META.format("{{ version }}"))
    with pytest.raises(TemplateFault, match=r"meta.yaml:2: with version 2.0, the template fails\n  why: ValueError"):
        bumped(case, "2.0")
    assert changed_lines(bumped(case, "2.0.0")) == {1: '{% set version = "2.0.0" %}'}


def test_versions_that_differ_by_selectors_are_refused_by_their_lines(tmp_path: Path) -> None:
    text = '{% set version = "1.0" %}  # [unix]\n{% set version = "1.1" %}  # [win]\n' + META.format("{{ version }}")
    with pytest.raises(RecipeFault, match=r"(?s)several versions.*are 1.0, 1.1.*lines 1, 2 by hand"):
        bumped(feedstock(tmp_path, text), "2.0")
    plan = bump.prepare_build_bump(feedstock(tmp_path, text))
    assert (plan.old, plan.numbers) == ("1.0, 1.1", ((0,), (1,))), "a build number is not the version's"


def test_a_version_of_a_variant_file_is_refused(tmp_path: Path) -> None:
    text = "{% set version = a_version %}\n" + META.format("{{ version }}")
    configs = {f"linux_64_{item}": f"a_version:\n- '{item}'\ntarget_platform:\n- linux-64\n" for item in ("1.0", "1.1")}
    with pytest.raises(RecipeFault, match=r"(?s)several versions.*are 1.0, 1.1.*such as in conda_build_config.yaml"):
        bumped(feedstock(tmp_path, text, configs=configs), "2.0")


def test_a_key_without_a_value_is_reported_with_the_command_that_gives_it_one(tmp_path: Path) -> None:
    text = V1.format("  version: 1.0\n  other: ${{ a_key }}", "${{ version }}")
    with pytest.raises(KilnError, match=r"(?s)recipe.yaml:3:10: .*a_key is not defined\n  try: kiln rerender first"):
        bumped(feedstock(tmp_path, text, v1=True), "2.0")


@pytest.mark.parametrize("version", ["", "v2.0", "2.0 ", "2.0;x", "2/0", "-2", "2.0}}", "9" * 65])
def test_an_invalid_version_is_refused(version: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="invalid version") as refused:
        bumped(feedstock(tmp_path, META.format("1.0")), version)
    assert refused.value.hint == ("kiln bump 2.0" if version == "v2.0" else refused.value.hint)
    assert refused.value.hint.startswith("kiln bump ")


def test_the_same_version_is_refused_and_an_older_one_noted(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"the recipe has version 1\.10"):
        bumped(feedstock(tmp_path, META.format("1.10")), "1.10")
    assert bumped(feedstock(tmp_path, META.format("1.10")), "1.9").notes == ("1.9 is older than 1.10",)


def test_an_output_with_a_version_of_its_own_keeps_it_and_its_build_number(tmp_path: Path) -> None:
    text = META.format("1.2").replace("number: 0", "number: 4") + (
        "outputs:\n  - name: b\n    version: 7\n    build:\n      number: 3\n"
        "  - name: c\n    version: 1.2\n  - name: d\n"
    )
    plan = bumped(feedstock(tmp_path, text), "2.0")
    assert changed_lines(plan) == {3: "version: 2.0", 5: "number: 0"}
    assert plan.notes == ("the output c keeps the version 1.2, which it writes out",)


OWN_VERSIONS = (
    ("1", ("{{ version }}", "{{ version }}"), "line 1"),  # a version at the top that no output and no source has
    ("1", ("{{ version }}", "7"), "line 1"),
    ("2024.1", ("{{ version }}", "{{ version }}.1"), "line 1"),
    ("3.4.5", ("1", "1"), "top"),  # the folder of the source has a 1, its name does not
)


@pytest.mark.parametrize("v1", [False, True])
@pytest.mark.parametrize(("top", "own", "changed"), OWN_VERSIONS)
def test_the_version_is_the_one_that_sources_have(
    top: str, own: tuple[str, str], changed: str, v1: bool, tmp_path: Path
) -> None:
    name = "version" if changed == "line 1" else "unused"
    up = tmp_path / "1"
    url = f"{up.as_uri()}/a-{{{{ version }}}}.tar" if changed == "line 1" else f"{up.as_uri()}/a-{top}.tar"
    hashes = released(up, "a-3.4.6.tar")
    head, package, output = f'{{% set {name} = "3.4.5" %}}\n', "package:\n  name: a", "  - name: b{}\n    version: {}\n"
    if v1:
        head, package = f'context:\n  {name}: "3.4.5"\n', "recipe:\n  name: a"
        output = "  - package:\n      name: b{}\n      version: {}\n"
    text = (
        f"{head}{package}\n  version: '{top}'\nsource:\n  url: {url}\n  sha256: {OLD}\nbuild:\n  number: 0\noutputs:\n"
    )
    text += "".join(output.format(index, f"'{version}'") for index, version in enumerate(own))
    case = feedstock(tmp_path / "f", text.replace("{{ version", "${{ version") if v1 else text, v1=v1)
    plan = bumped(case, "3.4.6")
    assert (plan.old, plan.new) == ("3.4.5", "3.4.6")
    lines = [line for line in changed_lines(plan).values() if "sha256" not in line]
    expected = {"line 1": head.splitlines()[-1].strip().replace("3.4.5", "3.4.6"), "top": "version: '3.4.6'"}
    assert lines[0] == expected[changed]
    assert list(plan.digests.values()) == [hashes["a-3.4.6.tar"]]


@pytest.mark.parametrize("ending", ["\r\n", "\n"])
def test_line_endings_and_tabs_stay(ending: str, tmp_path: Path) -> None:
    text = '{% set version = "1.2.3" %}\t \n\n' + META.format("{{ version }}").rstrip("\n")
    text = text.replace("\n", ending)
    assert bumped(feedstock(tmp_path, text), "2.0").changed_text == text.replace("1.2.3", "2.0")


NUMBERED = "{}package:\n  name: a\n  version: 1.0\nbuild:\n  number: {}\n"
GPU = {f"linux_64_cuda{cuda}": f"cuda:\n- '{cuda}'\ntarget_platform:\n- linux-64\n" for cuda in ("None", "12.9")}


@pytest.mark.parametrize(
    ("text", "reset", "next_build"),
    [
        (NUMBERED.format("", "3"), {5: "number: 0"}, {5: "number: 4"}),
        (NUMBERED.format("", "203"), {5: "number: 0"}, {5: "number: 204"}),
        (
            NUMBERED.format('{% set build = 3 %}\n{% set build = build + 200 %}  # [cuda != "None"]\n', "{{ build }}"),
            {1: "{% set build = 0 %}"},
            {1: "{% set build = 4 %}"},
        ),
        (
            NUMBERED.format("{% set offset = 100 %}\n{% set build = 3 %}\n", "{{ build + offset }}"),
            {2: "{% set build = 0 %}"},
            {2: "{% set build = 4 %}"},
        ),
        (
            NUMBERED.format("", '5  # [cuda == "None"]\n  number: 105  # [cuda != "None"]'),
            {5: 'number: 0  # [cuda == "None"]', 6: 'number: 100  # [cuda != "None"]'},
            {5: 'number: 6  # [cuda == "None"]', 6: 'number: 106  # [cuda != "None"]'},
        ),
        (
            NUMBERED.format(
                '{% set n = 7 %}  # [win]\n{% set n = 7 %}  # [not win]\n{% set n = "7" %}  # [win]\n', "{{ n }}"
            ),
            {2: "{% set n = 0 %}  # [not win]", 3: '{% set n = "0" %}  # [win]'},
            {2: "{% set n = 8 %}  # [not win]", 3: '{% set n = "8" %}  # [win]'},
        ),
    ],
)
def test_numbers_of_a_meta_yaml(text: str, reset: dict[int, str], next_build: dict[int, str], tmp_path: Path) -> None:
    case = feedstock(tmp_path, text, configs=GPU)
    changed = changed_lines(bumped(case, "2.0"))
    assert changed.pop(next(number for number, line in changed.items() if "version" in line)) == "version: 2.0"
    assert changed == reset
    assert changed_lines(bump.prepare_build_bump(case)) == next_build


def test_numbers_of_a_recipe_yaml(tmp_path: Path) -> None:
    text = (
        "context:\n  version: '1.0'\n  build: 3\nrecipe:\n  name: a\n  version: ${{ version }}\n"
        "build:\n  number: ${{ build + 100 }}\noutputs:\n"
        "  - package:\n      name: b\n  - package:\n      name: c\n    build:\n      number: 5\n"
        "  - package:\n      name: d\n      version: 9\n    build:\n      number: 8\n"
    )
    case = feedstock(tmp_path, text, v1=True)
    assert changed_lines(bumped(case, "2.0")) == {2: "version: '2.0'", 3: "build: 0", 15: "number: 0"}
    plan = bump.prepare_build_bump(case)
    assert changed_lines(plan) == {3: "build: 4", 15: "number: 6", 20: "number: 9"}
    assert plan.numbers == ((5, 8, 103), (6, 9, 104))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            NUMBERED.format("{% set a = 3 %}\n{% set b = 4 %}\n", "{{ a + b }}"),
            "recipe/meta.yaml:1:12: the build number has several parts\n  why: lines 1, 2 are added up to 7",
        ),
        (NUMBERED.format("{% set n = 1 + 2 %}\n", "{{ n }}"), "recipe/meta.yaml:6:3: the build number is computed"),
        (NUMBERED.format("", "{{ environ.get('N', '4') }}"), "recipe/meta.yaml:5:3: the build number is computed"),
        (
            NUMBERED.format("", '3  # [cuda == "None"]\n  number: 112  # [cuda != "None"]'),
            "unclear which are offsets\n  why: lines 5, 6 have 3, 112 for variants of one package",
        ),
    ],
)
def test_a_number_without_one_answer_is_refused_by_its_lines(text: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(RecipeFault, match=re.escape(message)):
        bumped(feedstock(tmp_path, text, configs=GPU), "2.0")


def test_a_recipe_without_a_build_number_has_none_to_increment(tmp_path: Path) -> None:
    case = feedstock(tmp_path, "package:\n  name: a\n  version: 1.0\n")
    with pytest.raises(RecipeFault, match=r"(?s)no build number.*add 'number: 0'"):
        bump.prepare_build_bump(case)
    assert changed_lines(bumped(case, "2.0")) == {3: "version: 2.0"}


# A selector that no config meets, and names that conda-build gives a value by the Python.
SELECTORS = [
    '(cuda or "").startswith("13")',
    'aarch64 and kind == "sbsa" and (cuda or "").startswith("13")',
    'cuda in ("12.8", "12.9") and kind != "x"',
    "py2k",
    "py27 or py36",
    'not (cuda or "13.0").endswith(".0")',
]


@pytest.mark.parametrize("selector", SELECTORS)
def test_a_source_is_found_where_no_config_has_what_its_selector_asks_for(
    selector: str, up: str, tmp_path: Path
) -> None:
    hashes = released(tmp_path / "up", "a-2.0.tar", "b-2.0.tar")
    text = (
        f"{HEAD}  - url: {up}/a-{{{{ version }}}}.tar\n    sha256: {OLD}\n"
        f"  - url: {up}/b-{{{{ version }}}}.tar  # [{selector}]\n    sha256: {OTHER}  # [{selector}]\n"
    )
    changed = changed_lines(bumped(feedstock(tmp_path / "f", text), "2.0"))
    assert changed[7] == f"sha256: {hashes['a-2.0.tar']}"
    assert changed[9] == f"sha256: {hashes['b-2.0.tar']}  # [{selector}]"


@pytest.mark.parametrize("v1", [False, True])
def test_a_source_is_found_under_a_condition_of_a_template_that_no_config_meets(
    v1: bool, up: str, tmp_path: Path
) -> None:
    hashes = released(tmp_path / "up", "a-2.0.tar", "b-2.0.tar")
    if v1:
        text = (
            'context:\n  version: "1.0"\npackage:\n  name: a\n  version: ${{ version }}\nsource:\n'
            f"  - url: {up}/a-${{{{ version }}}}.tar\n    sha256: {OLD}\n"
            f'  - if: kind == "new"\n    then:\n      url: {up}/b-${{{{ version }}}}.tar\n      sha256: {OTHER}\n'
        )
    else:
        text = (
            f"{HEAD}  - url: {up}/a-{{{{ version }}}}.tar\n    sha256: {OLD}\n"
            f'{{% if kind == "new" %}}\n  - url: {up}/b-{{{{ version }}}}.tar\n    sha256: {OTHER}\n{{% endif %}}\n'
        )
    configs = {"linux_64_": "kind:\n- old\n"}
    changed = changed_lines(bumped(feedstock(tmp_path / "f", text, v1=v1, configs=configs), "2.0"))
    assert f"sha256: {hashes['b-2.0.tar']}" in changed.values()


def test_a_selector_of_a_name_that_a_template_sets_leads_to_no_source(up: str, tmp_path: Path) -> None:
    released(tmp_path / "up", "a-2.0.tar")
    text = (
        f'{{% set kind = "x" %}}\n{HEAD}  url: {up}/a-{{{{ version }}}}.tar\n'
        f"  sha256: {OLD}\n  sha256: {OTHER}  # [kind == 'x']\n"
    )
    with pytest.raises(RecipeFault, match=r"makes its selector \[kind == 'x'\] hold") as caught:
        bumped(feedstock(tmp_path / "f", text), "2.0")
    assert "remove" not in str(caught.value)


def test_a_source_whose_hash_has_no_value_on_a_platform_is_not_one_there(up: str, tmp_path: Path) -> None:
    hashes = released(tmp_path / "up", "a-x-2.0.tar")
    text = (
        f'{{% set kind = "x" %}}  # [linux64]\n{{% set sum = "{OLD}" %}}  # [linux64]\n{HEAD}'
        f"  url: {up}/a-{{{{ kind }}}}-{{{{ version }}}}.tar\n  sha256: {{{{ sum }}}}\n"
    )
    assert changed_lines(bumped(feedstock(tmp_path / "f", text), "2.0")) == {
        2: f'{{% set sum = "{hashes["a-x-2.0.tar"]}" %}}  # [linux64]',
        3: '{% set version = "2.0" %}',
    }


def test_a_source_without_the_hash_that_it_has_elsewhere_is_not_downloaded(up: str, tmp_path: Path) -> None:
    hashes = released(tmp_path / "up", "x-2.0.tar", "y-2.0.tar")
    text = (
        f"{HEAD}  - url: {up}/{{{{ kind }}}}-{{{{ version }}}}.tar\n"
        f'    sha256: {OLD}  # [kind == "x"]\n    sha256: {OTHER}  # [kind == "y"]\n'
    )
    changed = changed_lines(bumped(feedstock(tmp_path / "f", text, configs={"linux_64_": "kind:\n- z\n"}), "2.0"))
    assert changed[7] == f'sha256: {hashes["x-2.0.tar"]}  # [kind == "x"]'
    assert changed[8] == f'sha256: {hashes["y-2.0.tar"]}  # [kind == "y"]'


@pytest.mark.parametrize("v1", [False, True])
def test_a_file_without_a_hash_is_asked_for_on_platforms_of_configs_alone(v1: bool, tmp_path: Path) -> None:
    released(tmp_path, "a-2.0-linux-64.tar", "a-2.0-win-64.tar")
    url = f"{tmp_path.as_uri()}/a-{{{{ version }}}}-{{{{ target_platform }}}}.tar"
    text = f"{HEAD}  url: {url}\n"
    if v1:
        text = 'context:\n  version: "1.0"\npackage:\n  name: a\n  version: ${{ version }}\nsource:\n'
        text += f"  url: {url.replace('{{', '${{')}\n"
    configs = {f"{name}_": f"target_platform:\n- {name.replace('_', '-')}\n" for name in ("linux_64", "win_64")}
    plan = bumped(feedstock(tmp_path / "f", text, v1=v1, configs=configs), "2.0")
    assert [download.display_name.rpartition("/")[2] for download in plan.downloads] == [
        "a-2.0-linux-64.tar",
        "a-2.0-win-64.tar",
    ]
