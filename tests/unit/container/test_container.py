"""A derived image is planned as one container without mounts, and keeps the settings of the image below."""

from __future__ import annotations

import dataclasses

from kiln.container.container import INSTALL, DerivedImage, packages_not_found, restored_setting_instructions
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
