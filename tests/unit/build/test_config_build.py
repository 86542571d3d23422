"""A cross-compiled config's scripts get the emulator's name, as in conda-forge's builds."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kiln.build.config_build import config_with_emulator
from kiln.build.engine.recipe import variant_variables
from kiln.feedstock import config_file, matrix, rerender
from kiln.recipe import pins, render
from tests import builders

if TYPE_CHECKING:
    from pathlib import Path

META = "package:\n  name: a\n  version: 1\nrequirements:\n  build:\n    - {{ compiler('c') }}\n"
FORGE = """\
provider:
  linux_64: default
  linux_aarch64: default
  osx_64: null
  win_64: null
build_platform:
  linux_aarch64: linux_64
"""


def test_scripts_of_cross_compiled_configs_find_qemu_user_if_it_is_here(tmp_path: Path) -> None:
    feedstock = builders.feedstock(tmp_path / "feedstock", META, "", FORGE)
    rerender.write_ci_support(feedstock, matrix.configs(feedstock))
    native, cross = (
        pins.close_static_pins(render.render(feedstock, config))
        for config in config_file.read_configs(feedstock, ("linux_64_", "linux_aarch64_"))
    )
    qemu = tmp_path / "bin" / "qemu-aarch64-static"
    qemu.parent.mkdir()
    qemu.touch(mode=0o755)
    environment = {"PATH": str(qemu.parent)}
    variables = variant_variables(config_with_emulator(cross, environment))
    assert variables["CROSSCOMPILING_EMULATOR"] == variables["CMAKE_CROSSCOMPILING_EMULATOR"] == str(qemu)
    assert config_with_emulator(cross, environment).outputs == cross.outputs, (
        "neither hash nor name of the package change"
    )
    assert config_with_emulator(native, environment) is native
    assert config_with_emulator(cross, {"PATH": str(tmp_path)}) is cross
