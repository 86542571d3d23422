"""Match specs between conda-build's way of writing them and rattler-build's."""

from __future__ import annotations

import pytest
import rattler

from kiln.conda.specs import conda_build_spec, invalid_spec_reason, package_name, strict_rattler_spec

PAIRS = [
    ("numpy", "numpy"),
    ("libfoo 2.21.0", "libfoo ==2.21.0"),
    ("libfoo 2.21.0 cpu_*", "libfoo ==2.21.0 cpu_*"),
    ("python 3.11.* *_cpython", "python 3.11.* *_cpython"),
    ("zlib >=1.2,<2", "zlib >=1.2,<2"),
    ("zlib 1.2|1.3", "zlib ==1.2|==1.3"),
    ("zlib >=1.2,1.4", "zlib >=1.2,==1.4"),
    ("cuda-version 12.9.*", "cuda-version 12.9.*"),
]


@pytest.mark.parametrize(("written", "wanted"), PAIRS)
def test_a_bare_version_becomes_an_exact_one(written: str, wanted: str) -> None:
    assert strict_rattler_spec(written) == wanted


@pytest.mark.parametrize(("written", "wanted"), PAIRS)
def test_the_strict_form_turns_back(written: str, wanted: str) -> None:
    assert conda_build_spec(wanted) == written


def test_several_blanks_count_as_one() -> None:
    assert strict_rattler_spec("x86_64-microarch-level  1") == "x86_64-microarch-level ==1"


@pytest.mark.parametrize(
    "spec",
    [
        "ab-c_1",
        "ab-c_1 2.0",
        "ab-c_1>=2",
        "ab-c_1=2=h_0",
        " ab-c_1 [build=x]",
        "ab-c_1!=3",
        "c::ab-c_1 2",
        "c/noarch::ab-c_1",
        "https://h:8/c::ab-c_1=2",
        "*[name=ab-c_1]",
        "ab-c_1 >>2",
    ],
)
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
