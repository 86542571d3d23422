"""The sizes of configs, from fleet-sizes.yml."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from kiln.base.errors import MalformedYaml
from kiln.fleet.model import MachineType
from kiln.fleet.plan import limits
from kiln.state.results import JobSize

if TYPE_CHECKING:
    from pathlib import Path

TEXT = """\
- cores: 8
  disk: 100
- match: {cuda_compiler_version: "12.*"}
  cores: 32
  memory: 64.5
  time_limit: 90min
- match: {cuda_compiler_version: "12.9", python: "3.12.* *_cpython"}
  gpus: 1
  cores: 16
"""


def write(folder: Path, text: str) -> Path:
    (folder / limits.FILE).write_text(text)
    return folder


def test_later_entries_prevail_for_the_configs_whose_variant_they_match(tmp_path: Path) -> None:
    entries = limits.read_size_file(write(tmp_path, TEXT))
    cpu = {"cuda_compiler_version": ("None",), "python": ("3.12.* *_cpython",)}
    old = {**cpu, "cuda_compiler_version": ("12.5",)}
    new = {**cpu, "cuda_compiler_version": ("12.9",)}
    assert limits.config_size(entries, cpu) == JobSize(cores=8, disk=100)
    assert limits.config_size(entries, old) == JobSize(cores=32, memory=64.5, disk=100, time_limit=5400)
    assert limits.config_size(entries, new) == JobSize(cores=16, memory=64.5, disk=100, gpus=1, time_limit=5400)
    assert limits.config_size(entries, {}) == JobSize(cores=8, disk=100), "a key that the variant lacks does not match"


def test_a_config_without_a_file_needs_nothing(tmp_path: Path) -> None:
    assert limits.read_size_file(tmp_path) == ()
    assert limits.config_size((), {"python": ("3.12",)}) == JobSize()


@pytest.mark.parametrize(
    ("text", "message", "place"),
    [
        ("cores: 8", "is a list of entries", "fleet-sizes.yml"),
        ("- 8", "is a list of entries", "fleet-sizes.yml"),
        ("- cpus: 8", "unknown key 'cpus'", "fleet-sizes.yml:1:3"),
        ("- cores: 8\n- memory: much", "invalid memory 'much'", "fleet-sizes.yml:2:11"),
        ("- cores: 1.5", "invalid cores '1.5'", "fleet-sizes.yml:1:10"),
        ("- cores: nan", "invalid cores 'nan'", "fleet-sizes.yml:1:10"),
        ("- disk: inf", "invalid disk 'inf'", "fleet-sizes.yml:1:9"),
        ("- gpus: -1", "invalid gpus '-1'", "fleet-sizes.yml:1:9"),
        ("- cores: [8]", "invalid cores", "fleet-sizes.yml"),
        ("- time_limit: soon", "invalid time 'soon'", "fleet-sizes.yml:1:15"),
        ("- time_limit: 0h", "invalid time limit '0h'", "fleet-sizes.yml:1:15"),
        ("- match: 12.9\n  cores: 8", "match maps variant keys to values", "fleet-sizes.yml:1:3"),
        ("- match: {python: [3.12]}", "match maps variant keys to values", "fleet-sizes.yml:1:3"),
    ],
)
def test_an_invalid_file_is_refused_at_its_place(tmp_path: Path, text: str, message: str, place: str) -> None:
    with pytest.raises(MalformedYaml) as refused:
        limits.read_size_file(write(tmp_path, text))
    assert message in refused.value.what
    assert str(refused.value.at).startswith(place)


def test_a_size_fits_a_machine_type_that_has_as_much_or_is_unknown() -> None:
    kind = MachineType(provider="aws", type="compute-16", name="c7i.4xlarge", cores=16, memory=32, disk=150)
    assert JobSize(cores=16, memory=32, disk=150).fits(kind)
    assert not JobSize(cores=17).fits(kind)
    assert not JobSize(memory=32.5).fits(kind)
    assert not JobSize(disk=151).fits(kind)
    assert not JobSize(gpus=1).fits(kind)
    yours = MachineType(provider="static", type="static", name="yours", cores=0, memory=0, disk=0)
    assert JobSize(cores=64, memory=500).fits(yours)
    assert str(JobSize(cores=17, memory=64.5)) == "17 cores, 64.5 GB of memory"
