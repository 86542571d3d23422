"""Wheels are read with suspicion."""

from __future__ import annotations

import zipfile
from typing import TYPE_CHECKING

import pytest

from kiln.base.errors import BrokenPackage
from kiln.build.rehearsal.wheels import EntryPoint, license_files, open_wheel
from tests.unit.build.sample import METADATA, WHEEL, contents, make_wheel

if TYPE_CHECKING:
    from pathlib import Path


def refusal(path: Path) -> str:
    """Return the error of opening a wheel."""
    with pytest.raises(BrokenPackage) as caught, open_wheel(path):
        pass
    assert path.name in caught.value.what
    return caught.value.why


def test_a_valid_wheel_is_read(tmp_path: Path) -> None:
    metadata = METADATA + "Requires-Dist: six (>=1.6)\nRequires-Dist: tomli>=2; python_version < '3.11'\n"
    scripts = "[console_scripts]\nsmall = small.cli:main\nDeep = small:app.run [extra]\n[other]\nx = not-a-script\n"
    with open_wheel(make_wheel(tmp_path, contents(METADATA=metadata, entry_points__txt=scripts))) as wheel:
        assert (wheel.name, str(wheel.version), wheel.dist_info) == ("small", "1.2", "small-1.2.dist-info")
        assert [requirement.name for requirement in wheel.requirements] == ["six", "tomli"]
        assert wheel.entry_points == (
            EntryPoint(script="small", module="small.cli", attribute="main"),
            EntryPoint(script="Deep", module="small", attribute="app.run"),
        )


@pytest.mark.parametrize(
    "name", ["/etc/passwd", "../outside.py", "small/../../outside.py", "small/./x", "small//x", "a\\b", "small/\x1b[2J"]
)
def test_members_that_do_not_stay_inside_are_refused(name: str, tmp_path: Path) -> None:
    assert "it has a member" in refusal(make_wheel(tmp_path, {**contents(), name: "harm"}))


def test_symbolic_links_are_refused(tmp_path: Path) -> None:
    assert "symbolic link" in refusal(make_wheel(tmp_path, mode=0o120777))


@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_two_members_of_one_name_are_refused(tmp_path: Path) -> None:
    path = make_wheel(tmp_path)
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("small/__init__.py", "other")
    assert "two members of one name" in refusal(path)


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"METADATA": "Name: small\n"}, "no Name or no Version"),
        ({"METADATA": "Name: other\nVersion: 1.2\n"}, "that of other 1.2"),
        ({"METADATA": "Name: small\nVersion: 1.3\n"}, "that of small 1.3"),
        ({"METADATA": "Name: small\nVersion: new\n"}, "no valid version"),
        ({"METADATA": METADATA + "Requires-Dist: six >= one\n"}, "has the requirement 'six >= one'"),
        ({"METADATA": METADATA + "Requires-Dist: six @ https://x.invalid/six.whl\n"}, "requires six from a URL"),
        ({"WHEEL": WHEEL.replace("1.0", "2.0")}, "Wheel-Version is '2.0'"),
        ({"WHEEL": ""}, "Wheel-Version is ''"),
        ({"entry_points__txt": "no section\n"}, "entry_points.txt is malformed"),
        ({"entry_points__txt": "[console_scripts]\n../evil = small:main\n"}, "'../evil'"),
        ({"entry_points__txt": "[console_scripts]\nx = small\n"}, "'x' = 'small'"),
        ({"entry_points__txt": "[console_scripts]\nx = os:system('id')\n"}, "is malformed"),
    ],
)
def test_bad_metadata_is_refused_with_what_is_wrong(changes: dict[str, str], why: str, tmp_path: Path) -> None:
    assert why in refusal(make_wheel(tmp_path, contents(**changes)))


@pytest.mark.parametrize("missing", ["METADATA", "WHEEL"])
def test_a_missing_part_is_named(missing: str, tmp_path: Path) -> None:
    members = {name: text for name, text in contents().items() if not name.endswith(missing)}
    assert refusal(make_wheel(tmp_path, members)) == f"it has no {missing}"


def test_the_folder_that_describes_it_must_be_one(tmp_path: Path) -> None:
    assert "0 folders" in refusal(make_wheel(tmp_path, {"small/__init__.py": ""}))
    assert "Invalid wheel filename" in refusal(make_wheel(tmp_path, name="small-1.2.whl"))
    (tmp_path / "no-1-py3-none-any.whl").write_bytes(b"no zip")
    assert "damaged" in refusal(tmp_path / "no-1-py3-none-any.whl")
    assert "2 folders" in refusal(make_wheel(tmp_path, {**contents(), "other-1.dist-info/METADATA": ""}))


def test_what_a_package_vendors_does_not_describe_it(tmp_path: Path) -> None:
    with open_wheel(make_wheel(tmp_path, {**contents(), "small/_vendor/other-1.dist-info/METADATA": ""})) as wheel:
        assert wheel.dist_info == "small-1.2.dist-info"


def test_a_damaged_member_is_refused_when_it_is_read(tmp_path: Path) -> None:
    path = make_wheel(tmp_path)
    path.write_bytes(path.read_bytes().replace(b"answer = 42", b"answer = 43"))
    with pytest.raises(BrokenPackage, match="cannot be turned") as caught, open_wheel(path) as wheel:
        wheel.read_member("small/__init__.py")
    assert "Bad CRC-32" in caught.value.why


def test_license_texts_of_old_and_new_wheels_are_found(tmp_path: Path) -> None:
    members = contents(LICENSE="old", COPYING__txt="also old")
    members["small-1.2.dist-info/licenses/sub/LICENSE"] = "new"
    members["small/LICENSE"] = "a file of the package"
    with open_wheel(make_wheel(tmp_path, members)) as wheel:
        assert license_files(wheel) == {
            "LICENSE": "small-1.2.dist-info/LICENSE",
            "COPYING.txt": "small-1.2.dist-info/COPYING.txt",
            "sub/LICENSE": "small-1.2.dist-info/licenses/sub/LICENSE",
        }
