"""A wheel becomes a package: the same one each time, with all that an installer needs, or none at all."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import shutil
from dataclasses import replace
from threading import Event
from typing import TYPE_CHECKING

import pytest

from kiln.base import files as base_files
from kiln.base.errors import BrokenPackage, DiskFull, Interrupted
from kiln.build.rehearsal import packages as rehearsal_packages
from kiln.build.rehearsal import wheels
from kiln.build.rehearsal.packages import (
    NAME,
    PackageTarget,
    console_script_text,
    convert_wheel,
    convert_wheels,
    cuda_metadata,
    microarch_level_metadata,
)
from kiln.build.rehearsal.wheel_download import plan_from_locks
from kiln.build.rehearsal.wheels import EntryPoint
from kiln.conda import pypi
from kiln.conda.package_writer import PLACEHOLDER, write_metadata_only_package
from tests.unit.build.sample import METADATA, content, contents, info, make_wheel, unpacked

if TYPE_CHECKING:
    from pathlib import Path


TARGET = PackageTarget(python="3.11")


SITE = "lib/python3.11/site-packages"


def converted(folder: Path, members: dict[str, str] | None = None) -> Path:
    path = make_wheel(folder, members)
    return convert_wheel(path, base_files.sha256(path), folder / "out", TARGET)


def listed(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir()) if folder.exists() else []


def test_the_package_says_what_it_is_and_that_it_is_a_rehearsal(tmp_path: Path) -> None:
    metadata = METADATA + "Requires-Dist: typing-extensions~=4.12\nRequires-Dist: tomli; python_version < '3.11'\n"
    package = converted(tmp_path, contents(METADATA=metadata))
    index = info(package, "index")
    assert (index["name"], index["version"], index["subdir"], index["license"]) == ("small", "1.2", "linux-64", "MIT")
    assert index["build"].startswith("py311_rehearsal_h")
    assert package.name == f"small-1.2-{index['build']}.conda"
    assert index["depends"] == ["python >=3.11,<3.12.0a0", "python_abi 3.11.* *_cp311", "typing_extensions >=4.12,4.*"]
    about = info(package, "about")
    assert about["summary"] == "A small one"
    assert about["extra"] == {
        "rehearsal": True,
        "wheel": "small-1.2-py3-none-any.whl",
        "wheel_sha256": base_files.sha256(tmp_path / "small-1.2-py3-none-any.whl"),
    }


@pytest.mark.parametrize(
    ("tags", "expected"),
    [
        ("py3-none-any", []),
        ("cp311-cp311-manylinux_2_27_x86_64.manylinux_2_28_x86_64", ["__glibc >=2.27,<3.0.a0"]),
        ("cp311-cp311-manylinux2014_x86_64.manylinux_2_17_x86_64", ["__glibc >=2.17,<3.0.a0"]),
        ("py2.py3-none-manylinux2010_x86_64", ["__glibc >=2.12,<3.0.a0"]),
        ("py3-none-manylinux1_x86_64", ["__glibc >=2.5,<3.0.a0"]),
        ("cp311-cp311-macosx_12_0_arm64", ["__osx >=12.0"]),
    ],
)
def test_the_package_requires_the_c_library_of_the_wheels_tag(tmp_path: Path, tags: str, expected: list[str]) -> None:
    wheel = make_wheel(tmp_path, name=f"small-1.2-{tags}.whl")
    package = convert_wheel(wheel, base_files.sha256(wheel), tmp_path / "out", TARGET)
    assert [spec for spec in info(package, "index")["depends"] if spec.startswith("__")] == expected


def test_files_go_where_their_install_scheme_says(tmp_path: Path) -> None:
    data = {
        f"small-1.2.data/{path}": path
        for path in ("purelib/a.py", "platlib/b.py", "scripts/tool", "headers/small.h", "data/share/doc/small.txt")
    }
    names_in = unpacked(converted(tmp_path, {**contents(), **data})).keys()
    assert {name for name in names_in if not name.startswith("info/")} == {
        f"{SITE}/small/__init__.py",
        f"{SITE}/a.py",
        f"{SITE}/b.py",
        "bin/tool",
        "include/python3.11/small/small.h",
        "share/doc/small.txt",
        *(f"{SITE}/small-1.2.dist-info/{name}" for name in ("METADATA", "WHEEL", "INSTALLER", "RECORD")),
    }


def test_paths_are_listed_with_their_hashes_and_sizes(tmp_path: Path) -> None:
    package = converted(tmp_path)
    rows = {row["_path"]: row for row in info(package, "paths")["paths"]}
    payload = {name for name in unpacked(package) if not name.startswith("info/")}
    assert rows.keys() == payload
    for path, row in rows.items():
        data = content(package, path)
        assert (row["sha256"], row["size_in_bytes"]) == (hashlib.sha256(data).hexdigest(), len(data))
    assert content(package, "info/files").decode().split() == sorted(payload)


def test_console_scripts_start_with_the_prefix_that_the_installer_puts_in(tmp_path: Path) -> None:
    package = converted(tmp_path, contents(entry_points__txt="[console_scripts]\nsmall = small:main\n"))
    assert content(package, "bin/small").decode().startswith(f"#!{PLACEHOLDER}/bin/python\n")
    assert unpacked(package)["bin/small"].mode == 0o755
    (row,) = (row for row in info(package, "paths")["paths"] if row["_path"] == "bin/small")
    assert (row["prefix_placeholder"], row["file_mode"]) == (PLACEHOLDER, "text")


def test_a_script_calls_its_entry_point(capsys: pytest.CaptureFixture[str]) -> None:
    text = console_script_text(EntryPoint(script="x", module="os.path", attribute="basename.__name__.upper"))
    with pytest.raises(SystemExit, match="BASENAME"):
        exec(compile(text, "x", "exec"), {"__name__": "__main__"})
    exec(compile(text, "x", "exec"), {"__name__": "imported"})
    assert capsys.readouterr().out == ""


def test_a_script_of_the_wheel_gets_the_prefixs_python_and_its_license_is_packaged(tmp_path: Path) -> None:
    scripts = {"small-1.2.data/scripts/a": "#!python\nprint(1)\n", "small-1.2.data/scripts/b": "#!/bin/sh\n#!python\n"}
    scripts["small-1.2.dist-info/licenses/LICENSE"] = "all of it"
    package = converted(tmp_path, {**contents(), **scripts})
    assert content(package, "info/licenses/LICENSE") == b"all of it"
    assert content(package, "bin/a").decode() == f"#!{PLACEHOLDER}/bin/python\nprint(1)\n"
    assert content(package, "bin/b").decode() == "#!/bin/sh\n#!python\n"


def test_a_compiled_program_may_be_larger_than_what_is_read_into_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wheels, "_MAX_METADATA", 200)
    program = "\x7fELF" + "x" * 1000
    package = converted(tmp_path, {**contents(), "small-1.2.data/scripts/tool": program})
    assert content(package, "bin/tool").decode() == program
    paths = json.loads(content(package, "info/paths.json"))["paths"]
    assert [entry["size_in_bytes"] for entry in paths if entry["_path"] == "bin/tool"] == [len(program)]


def test_the_record_lists_the_installed_files_for_pythons_tools(tmp_path: Path) -> None:
    package = converted(tmp_path, contents(entry_points__txt="[console_scripts]\nsmall = small:main\n"))
    digest = base64.urlsafe_b64encode(hashlib.sha256(b"answer = 42\n").digest()).rstrip(b"=").decode()
    rows = content(package, f"{SITE}/small-1.2.dist-info/RECORD").decode().splitlines()
    assert f'"small/__init__.py",sha256={digest},12' in rows
    assert '"../../../bin/small",,' in rows
    assert rows[-1] == '"small-1.2.dist-info/RECORD",,'
    assert content(package, f"{SITE}/small-1.2.dist-info/INSTALLER") == b"conda\n"


def test_the_same_wheel_gives_the_same_bytes(tmp_path: Path) -> None:
    wheel = make_wheel(tmp_path)
    wheel.chmod(0o600)
    first, second = (convert_wheel(wheel, "0" * 64, tmp_path / name, TARGET) for name in ("one", "two"))
    assert first.name == second.name
    assert first.read_bytes() == second.read_bytes()


def test_a_package_that_is_there_is_not_made_again(tmp_path: Path) -> None:
    package = converted(tmp_path)
    before = package.stat()
    assert converted(tmp_path) == package
    assert (package.stat().st_ino, package.stat().st_mtime_ns) == (before.st_ino, before.st_mtime_ns)


def test_a_package_for_another_platform_says_so_and_follows_its_markers(tmp_path: Path) -> None:
    package = converted(tmp_path)
    foreign = convert_wheel(make_wheel(tmp_path), "0" * 64, tmp_path, replace(TARGET, subdir="linux-aarch64"))
    assert [(facts["subdir"], facts["arch"]) for facts in (info(package, "index"), info(foreign, "index"))] == [
        ("linux-64", "x86_64"),
        ("linux-aarch64", "aarch64"),
    ]
    markers = replace(TARGET, subdir="linux-aarch64").marker_environment()
    assert markers == {**TARGET.marker_environment(), "platform_machine": "aarch64"}
    apple = convert_wheel(make_wheel(tmp_path), "0" * 64, tmp_path, replace(TARGET, subdir="osx-arm64"))
    assert [info(apple, "index")[key] for key in ("subdir", "arch", "platform")] == ["osx-arm64", "arm64", "osx"]
    markers = replace(TARGET, subdir="osx-arm64").marker_environment()
    assert [markers[key] for key in ("sys_platform", "platform_system", "platform_machine")] == [
        *("darwin", "Darwin", "arm64")
    ]


@pytest.mark.parametrize("change", ["wheel", "python", "platform", "converter", "names"])
def test_whatever_changes_the_content_changes_the_name(
    change: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wheel = make_wheel(tmp_path)
    before = convert_wheel(wheel, "0" * 64, tmp_path, TARGET)
    if change == "converter":
        monkeypatch.setattr(rehearsal_packages, "CONVERTER", rehearsal_packages.CONVERTER + 1)
    if change == "names":
        monkeypatch.setattr(pypi, "names_table_digest", lambda: "other")
    others = {"python": PackageTarget(python="3.12"), "platform": replace(TARGET, subdir="linux-aarch64")}
    target = others.get(change, TARGET)
    assert convert_wheel(wheel, ("1" if change == "wheel" else "0") * 64, tmp_path, target).name != before.name


@pytest.mark.parametrize(
    "member",
    ["small-1.2.data/data/info/index.json", "small-1.2.data/purelib/small/__init__.py", "small-1.2.data/odd/x"],
)
def test_a_wheel_that_would_overwrite_leaves_nothing(member: str, tmp_path: Path) -> None:
    with pytest.raises(BrokenPackage, match="cannot be turned into a package") as caught:
        converted(tmp_path, {**contents(), member: "harm"})
    assert repr(member) in caught.value.why
    assert listed(tmp_path / "out") == []


def test_many_are_converted_in_the_order_given(tmp_path: Path) -> None:
    wheels = []
    for name in ("aa", "bb", "cc", "dd"):
        members = {f"{name}/__init__.py": name * 1000, f"{name}-1.dist-info/WHEEL": "Wheel-Version: 1.0\n"}
        members[f"{name}-1.dist-info/METADATA"] = f"Name: {name}\nVersion: 1\n"
        wheels.append((make_wheel(tmp_path, members, name=f"{name}-1-py3-none-any.whl"), name * 32))
    packages = convert_wheels(wheels, tmp_path / "out", TARGET)
    assert [package.name[:2] for package in packages] == ["aa", "bb", "cc", "dd"]
    assert sorted(package.name for package in packages) == listed(tmp_path / "out")


def test_a_conversion_can_be_stopped_and_leaves_nothing(tmp_path: Path) -> None:
    stop = Event()
    stop.set()
    with pytest.raises(Interrupted, match="stopped"):
        convert_wheel(make_wheel(tmp_path), "0" * 64, tmp_path / "out", TARGET, stop=stop)
    assert listed(tmp_path / "out") == []


def test_too_little_disk_space_is_reported_before_anything_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: shutil._ntuple_diskusage(10**9, 10**9, 20))
    with pytest.raises(DiskFull, match=r"packing small-1\.2-py3-none-any\.whl needs"):
        convert_wheel(make_wheel(tmp_path), "0" * 64, tmp_path / "out", TARGET)
    assert listed(tmp_path / "out") == []


def test_one_bad_wheel_among_many_is_reported(tmp_path: Path) -> None:
    bad = tmp_path / "bad-1-py3-none-any.whl"
    bad.write_bytes(b"no zip")
    with pytest.raises(BrokenPackage, match="bad-1-py3-none-any"):
        convert_wheels([(make_wheel(tmp_path), "0" * 64), (bad, "1" * 64)], tmp_path / "out", TARGET)


def test_cuda_libraries_go_where_conda_has_them_and_upstream_looks_for_them(tmp_path: Path) -> None:
    members = {
        "nvidia/__init__.py": "",
        "nvidia/cublas/__init__.py": "",
        "nvidia/cublas/lib/libcublas.so.12": "library",
        "nvidia/cublas/include/cublas.h": "header",
        "nvidia_cublas_cu12-12.9.1.4.dist-info/METADATA": "Name: nvidia-cublas-cu12\nVersion: 12.9.1.4\n",
        "nvidia_cublas_cu12-12.9.1.4.dist-info/WHEEL": "Wheel-Version: 1.0\n",
    }
    wheel = make_wheel(tmp_path, members, name="nvidia_cublas_cu12-12.9.1.4-py3-none-manylinux_2_27_x86_64.whl")
    package = convert_wheel(wheel, "0" * 64, tmp_path, PackageTarget(python="3.11", cuda="12.9"))
    result = unpacked(package)
    assert {name for name in result if not name.startswith("info/")} == {
        "lib/libcublas.so.12",
        "include/cublas.h",
        "nvidia/cublas",
    }
    assert result["nvidia/cublas"].linkname == ".."
    index = info(package, "index")
    assert (index["name"], index["depends"]) == ("libcublas", ["__glibc >=2.27,<3.0.a0", "cuda-version 12.9.*"])
    assert index["build"].startswith("cuda129_rehearsal_h")
    assert "info/run_exports.json" not in result  # its -dev package has them


def test_a_rehearsal_that_compiles_has_what_conda_forge_adds(tmp_path: Path) -> None:
    files = contents(METADATA="Metadata-Version: 2.1\nName: numpy\nVersion: 2.1\n")
    members = {name.replace("small-1.2", "numpy-2.1"): text for name, text in files.items()}
    numpy = make_wheel(tmp_path, members, "numpy-2.1-py3-none-any.whl")
    plain, compiled = (
        convert_wheel(numpy, "0" * 64, tmp_path, PackageTarget(python="3.11", as_conda_forge=value))
        for value in (False, True)
    )
    assert plain != compiled, "another content has another name"
    assert info(compiled, "run_exports") == {"weak": ["numpy >=1.23,<3"]}
    assert "info/run_exports.json" not in unpacked(plain)
    files = contents(METADATA="Metadata-Version: 2.1\nName: pip\nVersion: 26\n")
    members = {name.replace("small-1.2", "pip-26"): text for name, text in files.items()}
    pip = make_wheel(tmp_path, members, "pip-26-py3-none-any.whl")
    package = convert_wheel(pip, "0" * 64, tmp_path, PackageTarget(python="3.12", as_conda_forge=True))
    assert {"setuptools", "wheel"} <= set(info(package, "index")["depends"])


@pytest.mark.parametrize(
    ("processor", "levels"),
    [
        ("x86_64", {"1"}),
        ("x86_64_v2", {"1", "2"}),
        ("sandybridge", {"1", "2"}),
        ("zen", {"1", "2", "3"}),
        ("zen5", {"1", "2", "3", "4"}),
        ("a_processor_of_next_year", {"1", "2", "3", "4"}),
    ],
)
def test_a_processor_has_its_level_and_those_below(processor: str, levels: set[str]) -> None:
    accepted = set()
    for facts in microarch_level_metadata():
        (spec,) = facts.depends
        _, version, *build = spec.split(" ")
        assert version == "1.*"
        if all(re.match(pattern, processor) for pattern in build):
            accepted.add(facts.version)
        assert facts.name == NAME
    assert accepted == levels


@pytest.mark.parametrize("cuda", ["12.5", "12.9"])
def test_each_library_has_its_dev_package_and_all_have_one_version(cuda: str) -> None:
    wheels = plan_from_locks(python="3.11", cuda=cuda).dependencies
    facts = {item.name: item for item in cuda_metadata(wheels, PackageTarget(python="3.11", cuda=cuda))}
    assert facts["cuda-version"].version == cuda
    (cudart,) = (wheel.version for wheel in wheels if wheel.name == "nvidia-cuda-runtime-cu12")
    assert facts["cuda-cudart-dev"].depends == (f"cuda-version {cuda}.*", f"cuda-cudart =={cudart}")
    assert facts["cuda-cudart-dev"].run_exports == {"weak": (f"cuda-cudart >={cudart},<13.0a0",)}
    assert len(facts) == 10
    assert not {"cudnn", "nccl", "cuda-nvcc-tools"} & facts.keys()
    assert not list(cuda_metadata(plan_from_locks(python="3.11").dependencies, PackageTarget(python="3.11")))


def test_they_are_written_once(tmp_path: Path) -> None:
    planned, target = plan_from_locks(python="3.11", cuda="12.9"), PackageTarget(python="3.11", cuda="12.9")
    facts = list(cuda_metadata(planned.dependencies, target))
    packages = [write_metadata_only_package(tmp_path, item) for item in facts]
    times = [package.stat().st_mtime_ns for package in packages]
    assert [write_metadata_only_package(tmp_path, item) for item in facts] == packages
    assert [package.stat().st_mtime_ns for package in packages] == times
    assert all(name.startswith("info/") for name in unpacked(packages[0]))
    assert info(packages[0], "about")["extra"] == {"rehearsal": True}


def test_programs_stay_executable(tmp_path: Path) -> None:
    path = make_wheel(tmp_path, mode=0o755)
    package = convert_wheel(path, base_files.sha256(path), tmp_path, TARGET)
    assert unpacked(package)[f"{SITE}/small/__init__.py"].mode == 0o755
    assert unpacked(package)[f"{SITE}/small-1.2.dist-info/RECORD"].mode == 0o644
