"""The kinds of slim images."""

from __future__ import annotations

from kiln.cli.image import KINDS
from kiln.image import contents


def test_each_kind_is_complete_and_a_command_of_kiln_image() -> None:
    assert {path.stem for path in contents.KINDS.glob("*.json")} == set(KINDS)
    for name in KINDS:
        image_kind = contents.read_image_kind(name)
        assert all(script.is_file() for script in image_kind.scripts.values())
        programs = {image_kind.entrypoint[0], *image_kind.health[:1]}
        assert all(program in image_kind.scripts or program.startswith(contents.PREFIX) for program in programs)
