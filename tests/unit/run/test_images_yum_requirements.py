"""The names of yum_requirements.txt are read as conda-forge reads them, and nothing else than a name is accepted."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from kiln.base import process
from kiln.base.errors import RecipeFault
from kiln.build.job.job import BuildOptions, RunOptions
from kiln.run import images
from kiln.run.images import BuildLocation
from tests import builders

if TYPE_CHECKING:
    from pathlib import Path

    from kiln.recipe.feedstock import Feedstock

META = "package:\n  name: a\n  version: 1\n"
HOST = {"linux_64_": BuildLocation()}


def feedstock(folder: Path, text: str) -> Feedstock:
    return builders.feedstock(folder, META, files={"recipe/yum_requirements.txt": text})


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("# none\n\n", []),
        ("mesa-libGL  # for tests\nlibX11\nmesa-libGL\n", ["mesa-libGL", "libX11"]),
        (
            "libstdc++ glibc.i686\n\tgtk2-2.24.33-7.el8\r\n",
            ["libstdc++", "glibc.i686", "gtk2-2.24.33-7.el8"],
        ),
        ("perl-4:5.26\n1:bind~rc1\n", ["perl-4:5.26", "1:bind~rc1"]),
    ],
)
def test_names_are_read_by_line(tmp_path: Path, text: str, names: list[str]) -> None:
    assert list(images.read_yum_package_positions(feedstock(tmp_path, text))) == names


def test_a_recipe_without_the_file_needs_no_packages(tmp_path: Path) -> None:
    assert images.read_yum_package_positions(builders.feedstock(tmp_path, META)) == {}


@pytest.mark.parametrize(
    "name",
    [
        *("-y", "--setopt=reposdir=/tmp", "--installroot=/", "@development", "/usr/bin/env", "./a.rpm", "*", "lib[ab]"),
        *(
            "https://example.org/a.rpm",
            "$(id)",
            "`id`",
            "a;b",
            "a|b",
            "a&b",
            "a>b",
            "'a'",
            '"a"',
            "a\\b",
            "ä",
            "a" * 201,
        ),
        "libGL.so.1()(64bit)",
    ],
)
def test_what_is_no_name_is_refused_with_its_place(tmp_path: Path, name: str) -> None:
    with pytest.raises(RecipeFault, match="invalid package name") as caught:
        images.read_yum_package_positions(feedstock(tmp_path, f"# a\nlibX11 {name}\n"))
    assert (str(caught.value.at), caught.value.others) == ("recipe/yum_requirements.txt:2:8", ())


def test_all_invalid_names_are_reported_in_the_files_order(tmp_path: Path) -> None:
    with pytest.raises(RecipeFault) as caught:
        images.read_yum_package_positions(feedstock(tmp_path, "-a\nb\n-c\n"))
    assert [str(fault.at) for fault in (caught.value, *caught.value.others)] == [
        "recipe/yum_requirements.txt:1:1",
        "recipe/yum_requirements.txt:3:1",
    ]
    with pytest.raises(RecipeFault, match="more than 500 packages"):
        images.read_yum_package_positions(feedstock(tmp_path, "\n".join(f"a{number}" for number in range(501))))


@pytest.mark.parametrize("rehearsal", [False, True])
def test_nothing_is_installed_on_the_host_and_a_note_says_so(tmp_path: Path, *, rehearsal: bool) -> None:
    options = RunOptions(configs=("a",), command="", build=BuildOptions(rehearsal=rehearsal))
    places, notes = images.add_packages_to_images(feedstock(tmp_path, "b\na\n"), HOST, options, None, None)
    assert places == HOST
    assert [note.startswith(f"{images.FILE} is installed into images only") for note in notes] == [True]
    assert images.add_packages_to_images(builders.feedstock(tmp_path / "w", META), HOST, options, None, None) == (
        HOST,
        (),
    )


def test_the_note_has_the_command_where_the_names_are_this_systems() -> None:
    fedora = process.package_manager({"ID": "rocky", "ID_LIKE": "rhel centos fedora"}, "linux")
    assert images.host_packages_note(("a", "b"), fedora).endswith("must have a, b: sudo dnf install a b")
    assert images.host_packages_note(("a", "b"), "apt").endswith("must have a, b")
