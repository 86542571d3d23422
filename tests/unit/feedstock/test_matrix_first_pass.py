"""A recipe is first rendered before its variants are known: nothing of that pass is judged, as in conda-build."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from kiln.base.errors import RecipeFault, TemplateFault
from kiln.feedstock import matrix
from kiln.recipe import render
from tests import builders

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from kiln.recipe.feedstock import Feedstock

VARIANTS = "key:\n  - '1.2'\n  - '3.4'\nwords:\n  - a,b\n  - c,d\nzip_keys:\n  -\n    - key\n    - words\n"
META = """\
{before}
package:
  name: {name}
  version: {version}
build:
  number: {number}
  {build}
requirements:
  host:
{host}
  run:
{run}
    - last {{{{ key }}}}  # so that the key is used
"""
FORMS = {  # lines below run: the requirements at the key's two values
    "{% if key.startswith('1') %}\n    - a\n{% endif %}": (["a"], []),
    "{% if key.upper().endswith('4') %}\n    - a\n{% endif %}": ([], ["a"]),
    "{% if not key.isdigit() %}\n    - a\n{% endif %}": (["a"], ["a"]),
    "    - a {{ key.split('.')[0] }}": (["a 1"], ["a 3"]),
    "    - a {{ key.replace('.', '') }}": (["a 12"], ["a 34"]),
    "    - a {{ key.split('.')[0]|int + 1 }}": (["a 2"], ["a 4"]),
    "    - a {{ (key|float * 10)|int }}": (["a 12"], ["a 34"]),
    "    - a {{ -(key|int) + 4 }}": (["a 3"], ["a 1"]),
    "    - a {{ key[0] }}": (["a 1"], ["a 3"]),
    "    - a {{ key[:1] }}{{ key[2:] }}": (["a 12"], ["a 34"]),
    "    - a {{ key + '.0' }}": (["a 1.2.0"], ["a 3.4.0"]),
    "    - a {{ '%s.1' % key }}": (["a 1.2.1"], ["a 3.4.1"]),
    "    - a{{ key|length }}": (["a3"], ["a3"]),
    "    - a {{ key|default('9') }}": (["a 1.2"], ["a 3.4"]),
    "    - a {{ (key or '9').split('.')[1] }}": (["a 2"], ["a 4"]),
    "    - a {{ key if key is defined else '9' }}": (["a 1.2"], ["a 3.4"]),
    "{% if key in ('1.2', '5') %}\n    - a\n{% endif %}": (["a"], []),
    "{% if '4' in key %}\n    - a\n{% endif %}": ([], ["a"]),
    "{% if key|float < 2 %}\n    - a\n{% endif %}": (["a"], []),
    "{% if key > '2' and '2' < key %}\n    - a\n{% endif %}": ([], ["a"]),
    "{% if key == '1.2' or key != '3.4' %}\n    - a\n{% endif %}": (["a"], []),
    "{% for word in words.split(',') %}\n    - {{ word }}\n{% endfor %}": (["a", "b"], ["c", "d"]),
    "{% for word in words.split(',') if word != 'd' %}\n    - {{ word }}\n{% endfor %}": (["a", "b"], ["c"]),
    "{% set all = words.split(',') %}{% set first = all[0] %}\n    - {{ first }}": (["a"], ["c"]),
    "{% set major = key.split('.')[0] %}{% set next = major|int + 1 %}\n    - a >={{ major }},<{{ next }}": (
        ["a >=1,<2"],
        ["a >=3,<4"],
    ),
    "    - a {{ (words.split(',')|first).strip().lower() }}": (["a a"], ["a c"]),
    "{% set name = {'1.2': 'a.b', '3.4': 'c.d'}[key] %}\n    - {{ name.split('.')[1] }}": (["b"], ["d"]),
    "{% set major, minor = key.split('.') %}\n    - a {{ minor }}": (["a 2"], ["a 4"]),
    "    - a {{ 12 // (key|int) }}": (["a 12"], ["a 4"]),
    "    - a {{ '%d' % (key|float) }}": (["a 1"], ["a 3"]),
    "    - a {{ [1, 2, 3, 4][key|int] }}": (["a 2"], ["a 4"]),
    "    - a {{ words.split(',')|map('upper')|join('_') }}": (["a A_B"], ["a C_D"]),
    "    - a {{ environ.get('WORDS', key) }}": (["a 1.2"], ["a 3.4"]),
}


PARTS = {"before": "", "name": "app", "version": "'1'", "number": "0", "build": "", "host": "", "run": ""}


def feedstock_of(folder: Path, parts: Mapping[str, str], variants: str = VARIANTS) -> Feedstock:
    return builders.feedstock(folder, META.format(**{**PARTS, **parts}), variants)


def requirements(folder: Path, **parts: str) -> list[tuple[str, ...]]:
    """Write a recipe, and return the rendered outputs of its configs: name, version, build string and requirements."""
    feedstock = feedstock_of(folder, parts)
    configs = matrix.configs(feedstock)
    outputs = [output for config in configs for output in render.render(feedstock, config).outputs]
    return [(output.name, output.version, output.build_string, *output.requirements.run) for output in outputs]


@pytest.mark.parametrize("text", FORMS, ids=range(len(FORMS)))
def test_what_is_done_with_a_key_is_done_once_it_has_a_value(text: str, tmp_path: Path) -> None:
    results = [
        [spec for spec in run if not spec.startswith("last")] for _, _, _, *run in requirements(tmp_path, run=text)
    ]
    assert results == list(FORMS[text])


@pytest.mark.parametrize(
    ("parts", "expected"),
    [
        ({"name": "a-{{ key }}-b"}, ["a-1.2-b", "a-3.4-b"]),
        ({"name": "'{{ words[0] }}-x'"}, ["a-x", "c-x"]),
        ({"version": "1.{{ key }}"}, ["1.1.2", "1.3.4"]),
        ({"version": "'{{ key }}.0'"}, ["1.2.0", "3.4.0"]),
        ({"number": "{{ key.split('.')[0]|int * 100 - 1 }}"}, ["_99", "_299"]),
        ({"build": "string: k{{ key.replace('.', '') }}_{{ words[0] }}"}, ["k12_a", "k34_c"]),
        ({"build": "skip: {{ key.startswith('1') }}"}, ["3.4"]),
    ],
)
def test_names_versions_and_build_strings_are_judged_with_the_key(
    parts: dict[str, str], expected: list[str], tmp_path: Path
) -> None:
    found = [" ".join(output) for output in requirements(tmp_path, **parts)]
    assert len(found) == len(expected)
    assert all(text in output for text, output in zip(expected, found, strict=True))


@pytest.mark.parametrize(
    ("parts", "why"),
    [
        ({"name": "A{{ key }}"}, "not lower case"),
        ({"name": "a--{{ key }}"}, "not a valid package name"),
        ({"version": "1-{{ key }}"}, "has the character '-'"),
        ({"number": "x{{ key }}"}, "the build number is 'x1.2'"),
        ({"number": "{{ key|int - 5 }}"}, "the build number is '-4'"),
    ],
)
def test_a_fault_that_stays_is_found_before_anything_is_written(
    parts: dict[str, str], why: str, tmp_path: Path
) -> None:
    with pytest.raises(RecipeFault, match=why):
        matrix.configs(feedstock_of(tmp_path, parts))


@pytest.mark.parametrize("text", ["{{ kye.split('.')[0] }}", "{{ compiller('c') }}", "{{ kye.a.b() + 1 }}"])
def test_a_name_that_nothing_defines_is_refused_whatever_is_done_with_it(text: str, tmp_path: Path) -> None:
    with pytest.raises(TemplateFault, match="is undefined"):
        requirements(tmp_path, run=f"    - a {text}")


def test_a_package_twice_in_one_list_gives_a_provisional_build_string_that_is_not_built(tmp_path: Path) -> None:
    parts = {"host": "    - python\n    - python >=3.14.1", "run": "    - python"}
    feedstock = feedstock_of(tmp_path, parts, f"python:\n  - 3.13.* *_cp313\n{VARIANTS}")
    renderings = [render.render(feedstock, config) for config in matrix.configs(feedstock)]
    assert [rendered.outputs[0].build_string.split("h")[0] for rendered in renderings] == ["py>=314"] * 2
    with pytest.raises(RecipeFault, match="has the build string 'py>=314"):
        render.require_supported_keys(renderings, own_engine=True)
