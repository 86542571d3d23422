"""What the library wrote into a prefix is read again."""

from __future__ import annotations

import json
import shutil
from typing import TYPE_CHECKING

import pytest
from rattler import exceptions

from kiln.base import files
from kiln.base.errors import BrokenPackage, DiskFull, SolveFailed
from kiln.conda import solve
from kiln.conda.rattler.worker import SolveSpecs
from kiln.conda.solve import emulated_virtual_packages
from tests.unit.conda.local_solver import local_solver, package

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

RECORD = "conda-meta/new-1-0.json"


@pytest.fixture
def prefix(tmp_path: Path) -> Path:
    """A prefix with one new package, whose files came from a cache, and a damaged record of an older one."""
    for place in ("cache/bin/program", "prefix/bin/program"):
        files.write_text(tmp_path / place, "program")
    files.write_text(tmp_path / "prefix/bin/script", "/prefix")
    files.write_text(tmp_path / "prefix/lib/site-packages/module.py", "text")
    (tmp_path / "prefix/bin/link").symlink_to("program")
    paths: list[dict[str, object]] = [
        {"_path": "bin/program", "size_in_bytes": 99},  # which its package has wrong
        {"_path": "bin/script", "prefix_placeholder": "/p", "sha256_in_prefix": None, "size_in_bytes": 3},
        {"_path": "lib/site-packages/module.py", "size_in_bytes": 4},
        {"_path": "bin/link", "path_type": "softlink"},
    ]
    paths[1]["sha256_in_prefix"] = files.sha256(tmp_path / "prefix/bin/script")
    record = {"extracted_package_dir": str(tmp_path / "cache"), "paths_data": {"paths": paths}}
    files.write_text(tmp_path / "prefix" / RECORD, json.dumps(record))
    files.write_text(tmp_path / "prefix/conda-meta/old-1-0.json", "")
    return tmp_path / "prefix"


@pytest.mark.parametrize(
    "damage",
    [
        lambda prefix: (prefix / RECORD).write_text(""),
        lambda prefix: (prefix / RECORD).write_text('{"paths_data": {}}'),
        lambda prefix: (prefix / RECORD).write_text("[]"),
        lambda prefix: (prefix / "bin/program").write_text("prog"),
        lambda prefix: (prefix / "bin/program").unlink(),
        lambda prefix: (prefix / "bin/link").unlink(),
        lambda prefix: (prefix / "bin/script").write_text("/prefi\0"),
        lambda prefix: (prefix / "lib/site-packages/module.py").write_text(""),
    ],
)
def test_what_was_not_written_completely_is_found(
    prefix: Path, damage: Callable[[Path], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    solve._require_written_packages(prefix, {"old-1-0.json"})
    damage(prefix)
    with pytest.raises(BrokenPackage, match="was not written completely"):
        solve._require_written_packages(prefix, {"old-1-0.json"})
    monkeypatch.setattr(shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(1, 1, 0))
    with pytest.raises(DiskFull, match="was not written completely"):
        solve._require_written_packages(prefix, {"old-1-0.json"})


def test_the_virtual_package_of_another_processor_has_the_name_that_archspec_gives_it() -> None:
    machine = {"__archspec": ("1", "zen4"), "__glibc": ("2.36", "0")}
    names = {
        subdir: emulated_virtual_packages(subdir, machine)["__archspec"][1] for subdir in ("linux-64", "linux-aarch64")
    }
    assert names == {"linux-64": "x86_64", "linux-aarch64": "aarch64"}
    assert emulated_virtual_packages("linux-64", machine)["__glibc"] == machine["__glibc"]


def test_requested_specs_are_in_the_records_of_their_packages(tmp_path: Path) -> None:
    """By which a later install, and conda, know what the user asked for."""
    for name in ("app", "lib"):
        known = f'"name": "{name}", "version": "1", "build": "0", "build_number": 0, "subdir": "noarch", "depends": []'
        origin = f'"fn": "{name}-1-0.conda", "url": "https://a.example/noarch/{name}-1-0.conda", "channel": "a"'
        paths = '"files": [], "paths_data": {"paths": [], "paths_version": 1}'
        files.write_text(tmp_path / f"conda-meta/{name}-1-0.json", f"{{{known}, {origin}, {paths}}}")
    solve.record_requested_specs(tmp_path, ["app >=1", "app <3"])
    found = {record.name.normalized: record.requested_specs for record in solve.installed_package_records(tmp_path)}
    assert found == {"app": ["app >=1", "app <3"], "lib": []}


@pytest.mark.parametrize(
    ("specs", "told"),
    [
        (("other", "setuptols"), "nothing in c satisfies setuptols"),
        (("absent=3.12", "setuptols", "other"), "nothing in c satisfies absent 3.12.*"),
        (("app", "other<9"), "nothing in c satisfies absent >=2, a requirement of app, other<9"),
        (("app", "absent"), "nothing in c satisfies absent"),
    ],
)
def test_a_requested_package_that_no_channel_has_is_no_requirement_of_another(
    tmp_path: Path, specs: tuple[str, ...], told: str
) -> None:
    solve_here = local_solver(tmp_path, package("app", "1", "0", "absent >=2"), package("other", "1", "0"))
    with pytest.raises(SolveFailed) as caught:
        solve_here(specs, virtual_packages={})
    task = SolveSpecs(
        channels=["c"],
        specs=list(specs),
        virtual_packages={},
        platform="linux-64",
        installed=[],
        priority="strict",
        file_size=None,
    )
    assert task._solve_error(exceptions.SolverError(caught.value.why)).what == told
