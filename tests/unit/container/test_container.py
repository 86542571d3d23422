"""A derived image is planned as one container without mounts, and keeps the settings of the image below."""

from __future__ import annotations

import dataclasses
import subprocess

import pytest

from kiln.container.container import (
    HELD,
    INSTALL,
    KILLS,
    DerivedImage,
    is_memory_figure_line,
    packages_not_found,
    restored_setting_instructions,
    split_output_peak_and_kills,
    watched_command,
)
from kiln.container.plan import create_command
from tests.unit.container.test_plan import DOCKER

IMAGE = DerivedImage(image="anvil:1", digest="sha256:1", packages=("libX11", "mesa-libGL"))


def test_the_name_depends_on_the_digest_and_the_set_of_packages() -> None:
    assert IMAGE.tag == f"localhost/kiln-system-packages:{IMAGE.key[:24]}"
    assert dataclasses.replace(IMAGE, packages=("mesa-libGL", "libX11")).tag == IMAGE.tag
    others = {"image": "anvil:2"}, {"digest": "sha256:2"}, {"packages": ("libX11",)}, {"platform": "linux/arm64"}
    tags = [dataclasses.replace(IMAGE, **change).tag for change in others]
    assert [tag == IMAGE.tag for tag in tags] == [True, False, False, False]


def test_packages_are_installed_as_root_with_the_network_and_nothing_of_this_machine() -> None:
    plan = IMAGE.install_plan()
    assert (plan.network, plan.mounts, dict(plan.environment), plan.user) == (True, (), {}, None)
    words = create_command(DOCKER, plan, name="n", labels={})
    assert words[words.index("--cap-drop") + 1] == "ALL"
    assert "no-new-privileges" in words
    as_root = ("--entrypoint", "", "--user", "0:0", "anvil:1")
    assert words[-11:] == (*as_root, "sh", "-c", INSTALL, "kiln", "libX11", "mesa-libGL")


def test_names_that_no_repository_has_are_read_from_the_output() -> None:
    """The lines are those of dnf 4.14, yum 3.4 and microdnf 3.8."""
    lines = (
        "No match for argument: kiln-helo",
        "Error: Unable to find a match: kiln-helo other",
        "No package other available.",
        "error: No package matches 'third'",
        "No match for argument: kiln-helo",
    )
    assert packages_not_found(lines) == ("kiln-helo", "other", "third")
    assert packages_not_found(("Error: Failed to download metadata for repo 'appstream'",)) == ()


def test_the_image_keeps_the_settings_of_the_one_below_and_no_proxy() -> None:
    variables = ['LANG="C.UTF-8"', 'no_proxy=a "$b\\']
    below = {"Config": {"User": "conda", "Entrypoint": ["/opt/entry", "--"], "Cmd": None, "Env": variables}}
    names = ("PATH", "no_proxy", "https_proxy", "HTTP_PROXY", "LANG")
    assert list(restored_setting_instructions(below, names, ("libX11", "mesa-libGL"))) == [
        "USER conda",
        'ENTRYPOINT ["/opt/entry", "--"]',
        "CMD []",
        'ENV HTTP_PROXY=""',
        'ENV https_proxy=""',
        r'ENV no_proxy="a \"\$b\\"',
        "LABEL kiln.owner=",
        'LABEL kiln.system-packages="libX11 mesa-libGL"',
    ]
    assert next(iter(restored_setting_instructions({}, (), ()))) == "USER 0:0"


@pytest.mark.processes
@pytest.mark.parametrize("code", [0, 3, 137])
def test_the_programs_output_and_exit_code_are_handed_on(code: int) -> None:
    argv = watched_command(("bash", "-c", 'echo "$1"; exit "$2"', "me", "two  words * $HOME", str(code)))
    result = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=60)
    tail, _, _ = split_output_peak_and_kills(result.stdout)
    assert (result.returncode, tail, result.stderr) == (code, "two  words * $HOME", "")


def test_figures_are_removed_from_the_tail() -> None:
    assert split_output_peak_and_kills(f"one\ntwo\n{HELD} 123456\n{KILLS} 2") == ("one\ntwo", 123456, 2)
    assert split_output_peak_and_kills("one") == ("one", None, 0)
    assert is_memory_figure_line(f"{HELD} 1")
    assert not is_memory_figure_line(f"{HELD} much")
    assert not is_memory_figure_line(f"echo {HELD} 1")
