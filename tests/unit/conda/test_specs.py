"""Match specs between conda-build's way of writing them and rattler-build's."""

from __future__ import annotations

import itertools

import pytest
import rattler
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from kiln.conda.specs import (
    Version,
    conda_build_spec,
    invalid_spec_reason,
    matches,
    package_name,
    pinned_range,
    strict_rattler_spec,
    version_or_none,
)

NAMED = """\
ab-c_1; ab-c_1 2.0; ab-c_1>=2; ab-c_1=2=h_0;  ab-c_1 [build=x]; ab-c_1!=3; c::ab-c_1 2; c/noarch::ab-c_1
https://h:8/c::ab-c_1=2; *[name=ab-c_1]; ab-c_1 >>2"""


@pytest.mark.parametrize("spec", NAMED.replace("\n", "; ").split("; "))
def test_the_name_ends_where_the_version_begins(spec: str) -> None:
    assert package_name(spec) == "ab-c_1"


# Each form of CEP 29 and of conda's own documentation, what the engine is given for it, and what the package says.
FORMS = [
    ("six=1.17", "six 1.17.*", "six 1.17.*"),
    ("six =1.17", "six 1.17.*", "six 1.17.*"),
    ("six==1.17", "six ==1.17", "six 1.17"),
    ("six=1.17=py_0", "six ==1.17 py_0", "six 1.17 py_0"),
    ("six==1.17=py_0", "six ==1.17 py_0", "six 1.17 py_0"),
    ("tensorflow=2.21=cuda*", "tensorflow ==2.21 cuda*", "tensorflow 2.21 cuda*"),
    ("python=3.11.*=*_cpython", "python 3.11.* *_cpython", "python 3.11.* *_cpython"),
    ("six >=1.17,<2 py*", "six >=1.17,<2 py*", "six >=1.17,<2 py*"),
    ("six>=1.17,<2", "six >=1.17,<2", "six >=1.17,<2"),
    ("six >= 1.17, < 2", "six >=1.17,<2", "six >=1.17,<2"),
    ("six ~=1.17", "six ~=1.17", "six ~=1.17"),
    ("six!=1.17", "six !=1.17", "six !=1.17"),
    ("six 1.17*", "six 1.17*", "six 1.17*"),
    ("x264 1!152.2", "x264 ==1!152.2", "x264 1!152.2"),
    ("six=*", "six *", "six *"),
    ("six=*=py*", "six * py*", "six * py*"),
    ("six[version='1.16|1.17']", "six ==1.16|==1.17", "six 1.16|1.17"),
    ('six[version=">=1.16,<2", build=py*]', "six >=1.16,<2 py*", "six >=1.16,<2 py*"),
    ("six[build=py*]", 'six[build="py*"]', "six * py*"),
    ("six=1.17[build=py_0]", "six 1.17.* py_0", "six 1.17.* py_0"),
    ("six 1.17 [build_number='>=2']", 'six ==1.17[build_number=">=2"]', 'six 1.17[build_number=">=2"]'),
    ("conda-forge::six", "conda-forge::six", "conda-forge::six"),
    ("conda-forge/noarch::six=1.17=py_0", "conda-forge/noarch::six ==1.17 py_0", "conda-forge/noarch::six 1.17 py_0"),
    ("https://host:80/a/b::six 1", "https://host:80/a/b::six ==1", "https://host:80/a/b::six 1"),
    ("six[channel=conda-forge,subdir=noarch]", "conda-forge/noarch::six", "conda-forge/noarch::six"),
    ("six[subdir=noarch]", 'six[subdir="noarch"]', 'six[subdir="noarch"]'),
    ("six[md5=" + "0" * 32 + "]", f'six[md5="{"0" * 32}"]', f'six[md5="{"0" * 32}"]'),
    ("six[track_features='a b']", 'six[track_features="a b"]', 'six[track_features="a b"]'),
    ("six[extras=[a,b]]", "six[extras=[a,b]]", "six[extras=[a,b]]"),
    ("six 1.17 ^py.*$", 'six ==1.17[build="^py.*$"]', "six 1.17 ^py.*$"),
]  # fmt: skip


@pytest.mark.parametrize(("form", "engine", "package"), FORMS)
def test_every_form_of_conda_is_understood(form: str, engine: str, package: str) -> None:
    assert (strict_rattler_spec(form), conda_build_spec(form), invalid_spec_reason(form)) == (engine, package, "")
    assert strict_rattler_spec(strict_rattler_spec(form)) == engine
    assert package_name(form) in {"six", "python", "tensorflow", "x264"}


@pytest.mark.parametrize("form", [form for form, _, _ in FORMS])
def test_the_engine_understands_the_same_as_rattler_does_of_the_form_itself(form: str) -> None:
    assert str(rattler.MatchSpec(strict_rattler_spec(form), strict=True)) == str(rattler.MatchSpec(form, strict=False))


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("a >=1,,<2", "a bound is empty"),
        ("a >=1,", "a bound is empty"),
        ("foo@bar", "'foo@bar' is not the name of a package"),
        ("py@ 3", "'py@' is not the name of a package"),
        ("a .1", "'.1' is not a version, or a bound of one"),
        (">=1.0", "it names no package"),
        ("", "it names no package"),
        ("a >=1.0<2", "'>=1.0<2' is not a version, or a bound of one"),
        ("a=", "'=' is not a version, or a bound of one"),
        ("a==", "'==' is not a version, or a bound of one"),
        ("a 1 b c", "'1 b c' has more than a version and a build"),
        ("a[build]", "[build] is not a list of key=value"),
        ("a[biuld=x]", "'biuld' is not a key of a match spec"),
        ("a; if python", "'a;' is not the name of a package"),
    ],
)
def test_what_is_no_match_spec_is_reported_with_the_reason(text: str, why: str) -> None:
    assert invalid_spec_reason(text) == why
    assert strict_rattler_spec(text) == " ".join(text.split())


@pytest.mark.parametrize(
    "address", ["https://h/c/linux-64/six-1-0.conda", "/c/six-1-0.tar.bz2", "file:///c/six-1-0.conda"]
)
def test_the_address_of_a_package_stays(address: str) -> None:
    assert (invalid_spec_reason(address), strict_rattler_spec(address)) == ("", address)


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
    assert invalid_spec_reason(spec) == ""


@pytest.mark.parametrize("spec", INVALID.replace("\n", "; ").split("; "))
def test_what_conda_refuses_as_a_match_spec_is_invalid(spec: str) -> None:
    assert invalid_spec_reason(spec) != ""


FITS = """\
3.10 >=3.9; 3.10 <3.9|>=3.10; 3.10.4 3.10.*; 3.10.4 =3.10; 3.10 ==3.10.0; 3.11 !=3.10.*; 1.4.5 ~=1.4.2
3.5 (>=1,<2)|>=3; 1.0rc1 <1.0; 7 *; 12 12"""
FITS_NOT = """\
3.10 >=3.9,<3.10; 3.1 3.10.*; 3.10.4 ==3.10; 3.10.4 !=3.10.*; 1.5.0 ~=1.4.2; 1.4.1 ~=1.4.2; 2.0 (>=1,<2)|>=3
12.9 12"""


@pytest.mark.parametrize("pair", f"{FITS}; {FITS_NOT}".replace("\n", "; ").split("; "))
def test_a_version_fits_a_spec(pair: str) -> None:
    version, spec = pair.split()
    assert matches(version, spec) is (pair in FITS.replace("\n", "; ").split("; "))


@pytest.mark.parametrize("spec", ["", ">>1", ">=1,", "(>=1", ">=1)", "a b", "1" * 2000, "(" * 300 + "1" + ")" * 300])
def test_a_malformed_spec_is_refused(spec: str) -> None:
    with pytest.raises(ValueError, match=r"version|parenthesis"):
        matches("1", spec)


# From the documentation of conda's VersionOrder, each smaller than the next.
ORDER = """\
0.4 0.4.1.rc 0.4.1 0.5a1 0.5b3 0.5C1 0.5 0.9.6 0.960923 1.0 1.1dev1 1.1_ 1.1a1 1.1.dev1 1.1.a1 1.1.0rc1 1.1.0
1.1.0post1 1.1post1 1996.07.12 1!0.4.1 1!3.1.1.6 2!0.4.1"""


def test_versions_are_in_condas_order() -> None:
    versions = [Version(text) for text in ORDER.split()]
    assert sorted(versions) == versions
    assert all(left < right for left, right in itertools.pairwise(versions))


@pytest.mark.parametrize(("left", "right"), [("1.1", "1.1.0"), ("0.4.1.rc", "0.4.1.RC"), ("1.1.0dev1", "1.1.dev1")])
def test_equal_versions(left: str, right: str) -> None:
    assert Version(left) == Version(right)


@pytest.mark.parametrize("text", ["", "1..2", "1!2!3", "a!1", "+1", "1 2", "3.10.* *_cpython"])
def test_no_versions(text: str) -> None:
    assert version_or_none(text) is None


@pytest.mark.parametrize(
    ("version", "min_pin", "max_pin", "wanted"),
    [
        ("3.11.2", "x.x", "x.x", ">=3.11,<3.12.0a0"),
        ("1.2.3", "x.x.x.x.x.x", "x", ">=1.2.3,<2.0a0"),
        ("1.2.3", None, "x.x.x", "<1.2.4.0a0"),
        ("1.2.3", "x", None, ">=1"),
        ("9b", "x.x", "x", ">=9b,<10a"),
        ("1.1.1.*", "x.x.x", "x.x.x", ">=1.1.1,<1.1.2.0a0"),
        ("2.0.0rc1", "x.x.x.x.x.x", "x.x", ">=2.0.0rc.1,<2.1.0a0"),  # the dot is conda-build's
        ("7", "x.x", "x.x", ">=7,<8.0a0"),
        ("1!2.3", "x.x.x.x.x.x", "x", ">=1!2.3,<1!3.0a0"),  # conda-build forgets the epoch, and what it pinned
        ("1.0.1_", "x.x.x.x.x.x", "x.x.x", ">=1.0.1_,<1.0.2.0a0"),
        ("1.2.3+4.5", "x.x", "x.x", ">=1.2,<1.3.0a0"),
    ],
)
def test_a_pin_makes_a_range(version: str, min_pin: str | None, max_pin: str | None, wanted: str) -> None:
    assert pinned_range(version, min_pin, max_pin) == wanted


WORDS = ("0", "1", "2", "10", "007", "a", "b", "rc", "dev", "post", "DEV")
COMPONENTS = st.lists(st.sampled_from(WORDS), min_size=1, max_size=5).map("".join)  # rattler's numbers have 64 bits


@st.composite
def versions(draw: st.DrawFn) -> str:
    """Return versions of every form, except a word with an underscore at its end, where rattler differs from conda."""
    epoch = draw(st.sampled_from(["", "", "1!", "2!"]))
    separator = draw(st.sampled_from([".", "_"]))
    release = separator.join(draw(st.lists(COMPONENTS, min_size=1, max_size=4)))
    underscore = "_" if release[-1].isdigit() and draw(st.booleans()) else ""
    local = draw(st.lists(COMPONENTS, max_size=2))
    return f"{epoch}{release}{underscore}{'+' if local else ''}{'.'.join(local)}"


# Every pair of a list is compared, because drawing a version takes far longer than comparing two. A list is not shrunk,
# which takes minutes: the assertion names the pair.
@settings(phases=[Phase.generate])
@given(texts=st.lists(versions(), min_size=20, max_size=30, unique=True))
def test_the_order_is_rattlers(texts: list[str]) -> None:
    pairs = [(Version(text), rattler.Version(text)) for text in texts]
    for (left, their_left), (right, their_right) in itertools.combinations(pairs, 2):
        expected = (their_left < their_right, their_left == their_right)
        assert (left < right, left == right) == expected, f"{left.text} and {right.text}"


@given(text=versions())
def test_a_version_is_equal_to_itself_with_zeros_added_as_in_rattler(text: str) -> None:
    release, plus, local = text.partition("+")
    longer = f"{release}.0{plus}{local}" if not release.endswith("_") else text
    assert (Version(text) == Version(longer)) == (rattler.Version(text) == rattler.Version(longer))
