from __future__ import annotations

from kiln.store.bazel_variables_of_compile_scripts import shell_export_lines


def test_a_compile_steps_settings_are_shell_lines() -> None:
    assert shell_export_lines({"B": "it's", "A": "/x"}) == "export A=/x\nexport B='it'\"'\"'s'\n"
