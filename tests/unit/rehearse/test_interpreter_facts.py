"""Interpreters: which can be used, why others cannot, and where they are found."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from kiln import process_runner
from kiln.errors import UnsupportedPython
from kiln.rehearse.interpreter_facts import (
    facts_of,
    interpreter_from_facts,
    own_libraries,
    probe,
    require_supported,
)

BASE = Path("/opt/python")


def facts(**changes: object) -> dict[str, Any]:
    """The properties of a usable interpreter; its program is this one, since the program must exist."""
    return {
        "implementation": "cpython",
        "version": [3, 12, 1],
        "release": "final",
        "free_threaded": False,
        "debug": False,
        "system": "linux",
        "machine": "x86_64",
        "bits": 64,
        "libc": "glibc",
        "executable": str(Path(sys.executable).resolve()),
        "base_prefix": str(BASE),
        "stdlib": str(BASE / "lib/python3.12"),
        "lib_dynload": [str(BASE / "lib/python3.12/lib-dynload")],
        "include": str(BASE / "include/python3.12"),
        "site_packages": ["lib/python3.12/site-packages"],
        "scheme": str(BASE / "lib/python3.12/site-packages"),
        "modules": ["_ssl"],
        "mapped": [str(BASE / "lib/libpython3.12.so.1.0"), "/usr/lib/x86_64-linux-gnu/libssl.so.3"],
        **changes,
    }


def test_a_good_interpreter_is_described() -> None:
    require_supported(BASE / "bin/python", facts())
    result = interpreter_from_facts(facts())
    assert (result.version, result.python, result.standard_layout, result.include) == ("3.12.1", "3.12", True, None)
    assert result.libraries == (BASE / "lib/libpython3.12.so.1.0",)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"version": [3, 9, 18]}, "it is Python 3.9, and this TensorFlow has wheels for 3.10 to 3.13 only"),
        ({"version": [3, 14, 0]}, "it is Python 3.14"),
        ({"implementation": "pypy"}, "it is pypy"),
        ({"system": "darwin", "machine": "arm64"}, "runs on darwin arm64"),
        ({"machine": "aarch64"}, "runs on linux aarch64"),
        ({"bits": 32}, "with 32 bits"),
        ({"libc": ""}, "not glibc"),
        ({"free_threaded": True}, "free-threaded build"),
        ({"debug": True}, "debug build"),
        ({"release": "candidate"}, "pre-release (candidate)"),
        ({"stdlib": "/nix/store/lib/python3.12"}, "its standard library is in /nix/store/lib/python3.12"),
        ({"lib_dynload": []}, "lib-dynload"),
        ({"executable": __file__}, "is a script, so the path"),
    ],
)
def test_what_cannot_be_used_is_refused_with_the_reason_and_what_works(change: dict[str, object], why: str) -> None:
    with pytest.raises(UnsupportedPython, match="/opt/python/bin/python cannot be used") as caught:
        require_supported(BASE / "bin/python", facts(**change))
    assert why in caught.value.why
    assert "CPython 3.10 to 3.13 for Linux x86-64" in caught.value.hint


def test_debians_layout_is_recognized() -> None:
    debian = facts(
        base_prefix="/usr",
        stdlib="/usr/lib/python3.12",
        site_packages=["local/lib/python3.12/dist-packages", "lib/python3/dist-packages"],
        scheme="/usr/local/lib/python3.12/dist-packages",
        mapped=["/usr/lib/x86_64-linux-gnu/libssl.so.3"],
    )
    result = interpreter_from_facts(debian)
    assert (result.standard_layout, result.libraries) == (False, ())


@pytest.mark.parametrize(
    ("mapped", "base", "own"),
    [
        (["/opt/python/lib/libssl.so.3", "/opt/python/lib/libpython3.12.so.1.0"], "/opt/python", [1, 0]),
        (["/opt/python/lib/python3.12/lib-dynload/_ssl.so", "/lib/libc.so.6"], "/opt/python", []),
        (["/usr/lib64/libpython3.12.so.1.0", "/usr/lib64/libssl.so.3"], "/usr", [0]),
        (["/usr/local/lib/libpython3.12.so.1.0", "/usr/lib/libssl.so.3"], "/usr/local", [0]),
    ],
)
def test_libraries_of_the_system_are_not_the_interpreters_own(mapped: list[str], base: str, own: list[int]) -> None:
    paths = [Path(path) for path in mapped]
    result = own_libraries(paths, base=Path(base), stdlib=Path(base) / "lib/python3.12")
    assert result == tuple(paths[index] for index in own)


def answering(monkeypatch: pytest.MonkeyPatch, answers: dict[str, dict[str, Any] | str]) -> list[Path]:
    """Let these programs answer; what is asked is noted."""
    asked: list[Path] = []

    def capture(argv: list[Path], *, env: object, timeout: float) -> process_runner.Result:
        asked.append(argv[0])
        answer = answers[str(argv[0])]
        said, failed = ("", answer) if isinstance(answer, str) else (json.dumps(answer), "")
        return process_runner.Result(argv=(), exit_code=int(bool(failed)), tail=failed, seconds=0.1, stdout=said)

    monkeypatch.setattr(process_runner, "capture", capture)
    return asked


def test_a_program_that_is_not_python_3_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    answering(monkeypatch, {"/bin/old": "Unknown option: -I"})
    with pytest.raises(UnsupportedPython, match="/bin/old does not answer as a Python 3") as caught:
        probe(Path("/bin/old"), env={})
    assert caught.value.why == "Unknown option: -I"


@pytest.mark.processes
def test_this_very_interpreter_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    result = interpreter_from_facts(facts_of(Path(sys.executable), env={}))
    assert result.version == ".".join(str(number) for number in sys.version_info[:3])
    assert result.base_prefix == Path(sys.base_prefix).resolve()
    assert result.executable.is_file()
    assert (result.stdlib / "os.py").is_file()
