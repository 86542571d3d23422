"""The location of a build is an image's name and digest, or the host's compilers, and part of its key."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

import pytest

from kiln.base import process
from kiln.base.errors import RecipeFault, UsageError
from kiln.base.process import ProcessResult
from kiln.build.job.job import BuildOptions, HostMachine, RunOptions
from kiln.container import emulation
from kiln.container.engine import Engine, EngineKind
from kiln.recipe.feedstock import BuildConfig
from kiln.run import images
from kiln.run.images import BuildLocation, choose_build_locations, choose_container_engine, image_names_for_report
from tests import builders

if TYPE_CHECKING:
    from kiln.recipe.feedstock import Feedstock

DIGEST = f"sha256:{'5' * 64}"

HERE = HostMachine(environment={}, python=Path("python3"))

OWN_PLATFORM = emulation.oci_platform(emulation.container_subdir())

IMAGE = BuildLocation(image="localhost/i:1", digest=DIGEST)


def test_an_image_is_named_with_its_digest_once() -> None:
    pinned = dataclasses.replace(IMAGE, image=f"localhost/i@{DIGEST}")
    assert IMAGE.pinned_image == f"localhost/i:1@{DIGEST}"
    assert pinned.pinned_image == pinned.image
    assert dataclasses.replace(IMAGE, digest="unknown").pinned_image == "localhost/i:1"
    derived = dataclasses.replace(IMAGE, image="localhost/d:1", origin=f"{IMAGE.pinned_image} with libX11")
    assert (derived.pinned_image, derived.compilers_digest(HERE)) == (f"localhost/i:1@{DIGEST} with libX11", DIGEST)


def test_a_run_names_each_image_once_and_none_on_the_host() -> None:
    assert image_names_for_report({"a": IMAGE, "b": IMAGE}) == IMAGE.pinned_image
    assert image_names_for_report({"a": BuildLocation()}) is None


def test_a_container_compiles_with_its_images_compilers_and_the_host_with_its_own(tmp_path: Path) -> None:
    machine = HostMachine(environment={"PATH": str(tmp_path)}, python=Path("python3"))
    without = BuildLocation().compilers_digest(machine)
    (tmp_path / "gcc").write_text("#!/bin/sh\n")
    (tmp_path / "gcc").chmod(0o755)
    assert IMAGE.compilers_digest(machine) == DIGEST
    assert BuildLocation().compilers_digest(machine) != without


def test_a_rehearsal_runs_on_the_host_and_with_rattler_build_alone() -> None:
    options = RunOptions(configs=("a",), command="", build=BuildOptions(rehearsal=True))
    assert choose_container_engine(options).engine is None
    with pytest.raises(UsageError, match="--rehearse requires --engine rattler-build"):
        choose_container_engine(dataclasses.replace(options, build=BuildOptions(rehearsal=True, engine="conda-build")))


class EngineWithImages(Engine):
    """An engine that has images of this machine's platform, by name."""

    images: ClassVar[dict[str, str]] = {"quay.io/here:1": f"quay.io/here@{DIGEST}"}

    def run_command(self, *words: str) -> ProcessResult:
        assert words[:2] == ("image", "inspect")
        system, _, architecture = OWN_PLATFORM.partition("/")
        described = {"Os": system, "Architecture": architecture, "RepoDigests": [self.images.get(words[2], "")]}
        missing = words[2] not in self.images
        text = "Error: no such image" if missing else ""
        return ProcessResult(argv=words, exit_code=int(missing), tail=text, seconds=0.0, stdout=json.dumps([described]))


ENGINE = EngineWithImages(kind=EngineKind.PODMAN, executable="podman", version="5", environment={})

CONFIG = BuildConfig(name="c", platform="linux-64", variant={}, pin_run_as_build={}, image="quay.io/here:1")


def test_a_config_is_built_in_its_image_or_in_the_one_of_the_caller() -> None:
    options = RunOptions(configs=("c",), command="", fetch=False)
    places, notes = choose_build_locations([(CONFIG, OWN_PLATFORM)], options, ENGINE, None)
    assert (places, notes) == ({"c": BuildLocation(image="quay.io/here:1", digest=DIGEST)}, ())
    absent = dataclasses.replace(options, image="quay.io/absent:1")
    places, notes = choose_build_locations([(CONFIG, OWN_PLATFORM)], absent, ENGINE, None)
    assert places == {"c": BuildLocation(image="quay.io/absent:1", digest="unknown")}
    assert notes == ("the image quay.io/absent:1 is missing and would be fetched",)


def test_a_config_without_an_image_is_refused_in_a_container_alone() -> None:
    config = dataclasses.replace(CONFIG, image=None)
    options = RunOptions(configs=("c",), command="", fetch=False)
    assert choose_build_locations([(config, OWN_PLATFORM)], options, None, None) == ({"c": BuildLocation()}, ())
    with pytest.raises(UsageError, match="c names no image to build in"):
        choose_build_locations([(config, OWN_PLATFORM)], options, ENGINE, None)
    two = [(CONFIG, "linux/arm64"), (dataclasses.replace(CONFIG, name="d"), "linux/amd64")]
    with pytest.raises(UsageError, match="here:1 is needed for linux/arm64 and for linux/amd64"):
        choose_build_locations(two, options, ENGINE, None)


META = "package:\n  name: a\n  version: 1\n"

HOST = {"linux_64_": BuildLocation()}


def feedstock(folder: Path, text: str) -> Feedstock:
    return builders.feedstock(folder, META, files={"recipe/yum_requirements.txt": text})


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("# none\n\n", []),
        ("mesa-libGL  # for tests\nlibX11\nmesa-libGL\n", ["mesa-libGL", "libX11"]),
        ("libstdc++ glibc.i686\n\tgtk2-2.24.33-7.el8\r\n", ["libstdc++", "glibc.i686", "gtk2-2.24.33-7.el8"]),
        ("perl-4:5.26\n1:bind~rc1\n", ["perl-4:5.26", "1:bind~rc1"]),
    ],
)
def test_names_are_read_by_line(tmp_path: Path, text: str, names: list[str]) -> None:
    assert list(images.read_yum_package_positions(feedstock(tmp_path, text))) == names


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
