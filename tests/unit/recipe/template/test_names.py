"""Names of selectors and templates: conda-build's names of platforms and languages, and which name hides which."""

from __future__ import annotations

import pytest

from kiln.base.patterns import CONDA_PLATFORMS
from kiln.recipe.template.expression import MissingName
from kiln.recipe.template.names import (
    Namespace,
    NotSeparable,
    RestrictedOs,
    cut_into_pieces,
    language_version_names,
    platform_names,
)


def true_names(subdir: str) -> set[str]:
    return {name for name, value in platform_names(subdir).items() if value}


@pytest.mark.parametrize(
    ("subdir", "expected"),
    [
        ("linux-64", {"linux", "linux64", "unix", "x86", "x86_64"}),
        ("linux-32", {"linux", "linux32", "unix", "x86"}),
        ("linux-aarch64", {"linux", "unix", "aarch64"}),
        ("linux-armv7l", {"linux", "unix", "arm", "armv7l"}),
        ("osx-arm64", {"osx", "unix", "arm64"}),
        ("win-64", {"win", "win64", "x86", "x86_64"}),
        ("emscripten-wasm32", {"emscripten", "unix", "wasm32"}),
        ("zos-z", {"zos", "z"}),
        ("noarch", set()),
        ("plan9-mips", {"plan9", "mips"}),
    ],
)
def test_the_names_of_a_subdir(subdir: str, expected: set[str]) -> None:
    assert true_names(subdir) == expected


def test_every_platform_defines_the_names_of_all() -> None:
    """A name that is only true elsewhere must be false here, not undefined."""
    keys = platform_names("linux-64").keys()
    assert all(platform_names(subdir).keys() == keys for subdir in CONDA_PLATFORMS)


@pytest.mark.parametrize(
    ("python", "expected"),
    [
        ("3.13.* *_cp313", {"py": 313, "py3k": True, "py2k": False, "py27": False}),
        ("2.7", {"py": 27, "py3k": False, "py2k": True, "py27": True}),
        ("3", {"py": 30, "py3k": True}),
        ("3.6.*", {"py": 36, "py36": True, "py35": False}),
    ],
)
def test_the_names_of_a_python(python: str, expected: dict[str, object]) -> None:
    names = language_version_names(python, "1.26", "5.32", "2.1")
    assert {name: names[name] for name in expected} == expected
    assert (names["np"], names["pl"], names["lua"], names["luajit"]) == (126, "5.32", "2.1", True)


def test_a_version_without_numbers_is_an_error() -> None:
    with pytest.raises(ValueError, match="invalid literal"):
        language_version_names("three", "1", "5", "5")


def test_platform_names_hide_those_of_the_variant() -> None:
    names = Namespace({"linux": True}, {"linux": "no", "n": "13", "b": "TRUE", "v": "1.20", "t": "x"}, frozenset())
    assert [names.lookup(name) for name in ("linux", "n", "b", "v", "t")] == [True, 13, True, "1.20", "x"]
    with pytest.raises(MissingName, match="other"):
        names.lookup("other")
    with pytest.raises(KeyError):
        names.fixed_value("n")


def test_a_misspelled_name_is_unknown_even_where_not_all_names_are_known() -> None:
    fixed, known = {"linux": True}, frozenset({"cuda_compiler_version"})
    strict, lenient = Namespace(fixed, {}, known), Namespace(fixed, {}, known, all_known=False)
    for name in ("linux", "cuda_compiler_version"):
        assert strict.is_known(name)
    assert not strict.is_known("somebodys_own_key")
    assert lenient.is_known("somebodys_own_key")
    assert not lenient.is_known("cuda_compiler_verion")


def test_equal_values_make_equal_cache_keys() -> None:
    """Values that differ in type only must not share a key: True and 1 are equal in Python."""
    keys = {Namespace({}, {"a": value}, frozenset()).cache_key_values(["a", "b"]) for value in (True, 1, "1", "True")}
    assert keys == {("True", None), ("1", None)}
    one, other = (Namespace({"a": value}, {"a": "hidden"}, frozenset()).cache_key_values(["a"]) for value in ([1], [2]))
    assert one != other


def test_templates_see_the_environment_of_the_rendering_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET_OF_THE_PROCESS", "x")
    os = RestrictedOs({"CI": "1"})
    assert (os.getenv("CI"), os.getenv("SECRET_OF_THE_PROCESS"), os.getenv("NO", "default")) == ("1", None, "default")
    with pytest.raises(TypeError):
        os.environ["CI"] = "2"  # type: ignore[index]


@pytest.mark.parametrize(
    "text",
    [
        "{% macro f() %}a{% endmacro %}\n",
        "{% import 'x' as y %}\n",
        "{%- if x %}\na\n{% endif %}\n",
        "{% set a %}\nb\n{% endset %}\n",
        "{% if x %}\na\n",
        "{{ a\n" + "b\n" * 600,
    ],
)
def test_a_template_whose_parts_depend_on_each_other_is_not_cut(text: str) -> None:
    with pytest.raises(NotSeparable):
        cut_into_pieces(text)
