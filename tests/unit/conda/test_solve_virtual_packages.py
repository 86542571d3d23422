"""The virtual packages of platforms whose programs are emulated."""

from __future__ import annotations

from kiln.conda.solve import emulated_virtual_packages


def test_the_virtual_package_of_another_processor_has_the_name_that_archspec_gives_it() -> None:
    machine = {"__archspec": ("1", "zen4"), "__glibc": ("2.36", "0")}
    names = {
        subdir: emulated_virtual_packages(subdir, machine)["__archspec"][1] for subdir in ("linux-64", "linux-aarch64")
    }
    assert names == {"linux-64": "x86_64", "linux-aarch64": "aarch64"}
    assert emulated_virtual_packages("linux-64", machine)["__glibc"] == machine["__glibc"]
