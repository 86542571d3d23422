"""pip chooses the wheels; what it says of a requirement without one becomes an answer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from kiln.errors import DownloadFailed
from kiln.rehearse import resolution
from kiln.rehearse.resolution import RequirementsConflict, platforms, resolve

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
        queue.append(list(requirements))
        return (None, answer) if isinstance(answer, str) else ({"install": answer}, "")

    monkeypatch.setattr(resolution, "_ask_pip", ask)
    return queue


def test_a_requirement_without_a_wheel_is_left_out_and_the_others_are_resolved(answers: list[Any]) -> None:
    versions = ", ".join(f"1.{minor}" for minor in range(9))
    answers += [
        f"ERROR: Could not find a version that satisfies the requirement b>=9 (from versions: {versions})",
        [entry("A", "1.0")],
    ]
    result = resolve(["b>=9", "a"], python="3.11", glibc="2.36", env={})
    assert [(wheel.name, wheel.version, wheel.pythons) for wheel in result.wheels] == [("a", "1.0", ("3.11",))]
    (unavailable,) = result.unavailable
    assert unavailable.project == "b"
    assert unavailable.reason == "b>=9: pip's index has only 1.0 to 1.8 for this Python and machine"
    assert answers == [["a", "b>=9"], ["a"]]


def test_a_requirement_of_a_wheel_is_named_with_the_requested_project(answers: list[Any]) -> None:
    answers += [
        "ERROR: Could not find a version that satisfies the requirement c (from a) (from versions: none)",
        [entry("b", "1")],
    ]
    result = resolve(["a", "b"], python="3.11", glibc="2.36", env={})
    (unavailable,) = result.unavailable
    assert (unavailable.project, unavailable.reason[:13]) == ("a", "a requires c:")


def test_what_another_python_requires_is_resolved_too(answers: list[Any]) -> None:
    old = entry("a", "1", 'tomli>=1; python_version < "3.11"', 'new; python_version >= "3.11"', "b", 'c; extra == "x"')
    answers += [[old, entry("b", "1")], [old, entry("b", "1"), entry("tomli", "2")]]
    result = resolve(["a"], python="3.10", glibc="2.36", env={})
    assert [wheel.name for wheel in result.wheels] == ["a", "b", "tomli"]
    assert answers == [["a"], ["a", "tomli>=1"]]


def test_a_version_that_another_python_does_not_admit_is_resolved_again(answers: list[Any]) -> None:
    old = entry("a", "1", 'b<2; python_version < "3.11"')
    answers += [[old, entry("b", "2")], [old, entry("b", "1.5")]]
    result = resolve(["a"], python="3.10", glibc="2.36", env={})
    assert [wheel.version for wheel in result.wheels] == ["1", "1.5"]


def test_pip_brings_setuptools_and_wheel_until_python_3_12(answers: list[Any]) -> None:
    answers += [[entry("pip", "26")], [entry("pip", "26"), entry("setuptools", "80"), entry("wheel", "1")]]
    resolve(["pip"], python="3.12", glibc="2.36", env={})
    assert answers == [["pip"], ["pip", "setuptools", "wheel"]]
    answers[:] = [[entry("pip", "26")]]
    assert [wheel.name for wheel in resolve(["pip"], python="3.13", glibc="2.36", env={}).wheels] == ["pip"]


def test_contradictions_and_an_unreachable_index_are_errors_of_their_own(answers: list[Any]) -> None:
    answers.append("ERROR: Cannot install a and b because these package versions have conflicting dependencies.")
    with pytest.raises(RequirementsConflict, match="conflicting dependencies"):
        resolve(["a", "b"], python="3.11", glibc="2.36", env={})
    answers[:] = ["ERROR: connection refused"]
    with pytest.raises(DownloadFailed, match="pip could not resolve") as caught:
        resolve(["a"], python="3.11", glibc="2.36", env={})
    assert caught.value.why == "connection refused"


def test_a_wheel_without_a_hash_is_refused(answers: list[Any]) -> None:
    answers.append([entry("a", "1", sha256="")])
    with pytest.raises(DownloadFailed, match=r"no hash of a-1-py3-none-any\.whl"):
        resolve(["a"], python="3.11", glibc="2.36", env={})


def test_wheels_are_for_this_machines_c_library() -> None:
    tags = platforms("2.28")
    assert tags[0] == "manylinux_2_28_x86_64"
    assert {"manylinux2014_x86_64", "manylinux1_x86_64", "linux_x86_64"} <= set(tags)
    assert "manylinux_2_31_x86_64" not in tags
    assert platforms("")[0] == "manylinux_2_17_x86_64"
