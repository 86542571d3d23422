"""pip chooses the wheels; what it says of a requirement without one becomes an answer."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from kiln.base.errors import DownloadFailed
from kiln.build.rehearsal import pip_alone, wheel_choice
from kiln.build.rehearsal.wheel_choice import RequirementsConflict, platform_tags, resolve_wheels

if TYPE_CHECKING:
    from collections.abc import Sequence

SHA = "a" * 64


def entry(name: str, version: str, *requires: str, sha256: str = SHA) -> dict[str, Any]:
    """One wheel of pip's report."""
    hashes = {"archive_info": {"hashes": {"sha256": sha256} if sha256 else {}}}
    url = f"file:///nowhere/{name}-{version}-py3-none-any.whl"
    metadata = {"name": name, "version": version, "requires_dist": list(requires)}
    return {"download_info": {"url": url, **hashes}, "metadata": metadata}


@pytest.fixture
def answers(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """pip's answers: reports, or the texts of failures; and the requests in their places afterwards."""
    queue: list[Any] = []

    def ask(requirements: Sequence[str], **_: object) -> tuple[dict[str, Any] | None, str]:
        answer = queue.pop(0)
        if isinstance(answer, Exception):
            raise answer
        queue.append(list(requirements))
        return (None, answer) if isinstance(answer, str) else ({"install": answer}, "")

    monkeypatch.setattr(wheel_choice, "_resolve_with_pip", ask)
    return queue


def test_a_requirement_without_a_wheel_is_left_out_and_the_others_are_resolved(answers: list[Any]) -> None:
    versions = ", ".join(f"1.{minor}" for minor in range(9))
    answers += [
        f"ERROR: Could not find a version that satisfies the requirement b>=9 (from versions: {versions})",
        [entry("A", "1.0")],
    ]
    result = resolve_wheels(["b>=9", "a"], python="3.11", glibc="2.36", env={})
    assert [(wheel.name, wheel.version, wheel.pythons) for wheel in result.wheels] == [("a", "1.0", ("3.11",))]
    (unavailable,) = result.unavailable
    assert unavailable.name == "b"
    assert unavailable.reason == "b>=9: pip's index has only 1.0 to 1.8 for this Python and machine"
    assert answers == [["a", "b>=9"], ["a"]]


def test_a_requirement_of_a_wheel_is_named_with_the_requested_project(answers: list[Any]) -> None:
    answers += [
        "ERROR: Could not find a version that satisfies the requirement c (from a) (from versions: none)",
        [entry("b", "1")],
    ]
    result = resolve_wheels(["a", "b"], python="3.11", glibc="2.36", env={})
    (unavailable,) = result.unavailable
    assert (unavailable.name, unavailable.reason[:13]) == ("a", "a requires c:")


def test_what_another_python_requires_is_resolved_too(answers: list[Any]) -> None:
    old = entry("a", "1", 'tomli>=1; python_version < "3.11"', 'new; python_version >= "3.11"', "b", 'c; extra == "x"')
    answers += [[old, entry("b", "1")], [old, entry("b", "1"), entry("tomli", "2")]]
    result = resolve_wheels(["a"], python="3.10", glibc="2.36", env={})
    assert [wheel.name for wheel in result.wheels] == ["a", "b", "tomli"]
    assert answers == [["a"], ["a", "tomli>=1"]]


def test_what_another_python_requires_and_no_wheel_provides_is_asked_for_once(answers: list[Any]) -> None:
    old = entry("a", "1", "B_c>=1; python_version < '3.11'")
    none = "ERROR: Could not find a version that satisfies the requirement b-c>=1 (from versions: none)"
    answers += [[old], none, [old], AssertionError("a fourth request")]
    result = resolve_wheels(["a"], python="3.10", glibc="2.36", env={})
    assert [wheel.name for wheel in result.wheels] == ["a"]
    assert [failure.name for failure in result.unavailable] == ["b-c"]
    assert answers[1:] == [["a"], ["a", "B_c>=1"], ["a"]]


def test_pip_brings_setuptools_and_wheel_until_python_3_12(answers: list[Any]) -> None:
    answers += [[entry("pip", "26")], [entry("pip", "26"), entry("setuptools", "80"), entry("wheel", "1")]]
    resolve_wheels(["pip"], python="3.12", glibc="2.36", env={})
    assert answers == [["pip"], ["pip", "setuptools", "wheel"]]
    answers[:] = [[entry("pip", "26")]]
    assert [wheel.name for wheel in resolve_wheels(["pip"], python="3.13", glibc="2.36", env={}).wheels] == ["pip"]


def test_contradictions_and_an_unreachable_index_are_errors_of_their_own(answers: list[Any]) -> None:
    answers.append("ERROR: Cannot install a and b because these package versions have conflicting dependencies.")
    with pytest.raises(RequirementsConflict, match="conflicting dependencies"):
        resolve_wheels(["a", "b"], python="3.11", glibc="2.36", env={})
    answers[:] = ["ERROR: connection refused"]
    with pytest.raises(DownloadFailed, match="pip could not resolve") as caught:
        resolve_wheels(["a"], python="3.11", glibc="2.36", env={})
    assert caught.value.why == "connection refused"


def test_a_wheel_without_a_hash_is_refused(answers: list[Any]) -> None:
    answers.append([entry("a", "1", sha256="")])
    with pytest.raises(DownloadFailed, match=r"no hash of a-1-py3-none-any\.whl"):
        resolve_wheels(["a"], python="3.11", glibc="2.36", env={})


def test_wheels_are_for_this_machines_c_library() -> None:
    tags = platform_tags("2.28")
    assert tags[0] == "manylinux_2_28_x86_64"
    assert {"manylinux2014_x86_64", "manylinux1_x86_64", "linux_x86_64"} <= set(tags)
    assert "manylinux_2_31_x86_64" not in tags
    assert platform_tags("")[0] == "manylinux_2_17_x86_64"


@pytest.mark.processes
@pytest.mark.parametrize("statement", ["os.system('true')", "os.fork()", "os.execv('/bin/true', ['true'])"])
def test_no_way_to_start_a_program_is_left(statement: str) -> None:
    hook = "runpy.run_path(sys.argv[1])['refuse_child_process']"
    code = f"import os, runpy, sys; sys.addaudithook({hook}); {statement}"
    argv = (sys.executable, "-c", code, pip_alone.__file__)
    result = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert f"PermissionError: {pip_alone.REFUSAL}" in result.stderr


def test_only_keyring_may_be_started() -> None:
    pip_alone.refuse_child_process("subprocess.Popen", ("/usr/bin/keyring", ["keyring", "get"], None, None))
    pip_alone.refuse_child_process("open", ("file", "r", 0))
    with pytest.raises(PermissionError):
        pip_alone.refuse_child_process("subprocess.Popen", ("git", ["git", "clone"], None, None))


def test_a_version_that_another_python_does_not_admit_is_resolved_again(answers: list[Any]) -> None:
    old = entry("a", "1", 'b<2; python_version < "3.11"')
    answers += [[old, entry("b", "2")], [old, entry("b", "1.5")]]
    result = resolve_wheels(["a"], python="3.10", glibc="2.36", env={})
    assert [wheel.version for wheel in result.wheels] == ["1", "1.5"]
