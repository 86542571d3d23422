"""The one check of what a worker, a CI job or another machine delivers: it is what this feedstock's config renders.

The sender is not trusted. Its report is data of limited size; each package has the hash, the size and the metadata that
the report and the rendered config say, and no other package is taken.
"""

from __future__ import annotations

import dataclasses
import json
import re
from typing import TYPE_CHECKING, Any

from kiln.base import files, limits
from kiln.base.errors import BrokenPackage, HashMismatch
from kiln.base.patterns import is_channel_subdir
from kiln.conda import package_reader
from kiln.feedstock import config_file
from kiln.recipe import pins, render

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from kiln.recipe.feedstock import Feedstock
    from kiln.recipe.rendered import Output
    from kiln.state.results import PackageReport

LONGEST_REPORT = 16 << 20  # bytes
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.!+~-]*\.conda")
WHEEL = re.compile(r"wheels/(?:cpu|cuda\d+(?:\.\d+)*)(?:-linux-[a-z0-9]+)?/[A-Za-z0-9_][A-Za-z0-9_.+-]*\.whl")


def read_report(path: Path) -> Any:
    """Return the JSON value of a report.

    Raises:
        OSError: it is missing, or not a regular file.
        ValueError: it is not JSON, or too large.
    """
    try:
        return json.loads(files.read_regular_file(path, LONGEST_REPORT))
    except RecursionError as error:
        raise ValueError("its values are nested too deep") from error


def verify_received_package(folder: Path, report: PackageReport) -> PackageReport:
    """Return a package of a report with its path in a folder, once its name, size and hash were checked.

    Raises:
        BrokenPackage: when it names a file outside of the folder, has an impossible size, or is missing.
        HashMismatch: when the file is not the one that was built.
    """
    artifact = report.artifact
    name = artifact.path.name
    require_package_name(artifact.subdir, name)
    if type(artifact.size) is not int or artifact.size < 0:
        raise BrokenPackage(f"{name} cannot have {artifact.size} bytes")
    path = folder / artifact.subdir / name
    if path.is_symlink() or not path.is_file():
        raise BrokenPackage(f"{name} is missing", why=f"it is in the report, but not in {path.parent}")
    size = path.stat().st_size
    digest = files.sha256(path) if size == artifact.size else ""
    if digest != artifact.sha256:
        why = f"its hash is {digest}, not {artifact.sha256}" if digest else f"it has {size} bytes, not {artifact.size}"
        raise HashMismatch(f"{name} is corrupt", why=why)
    tests = dataclasses.replace(report.tests, log=None)
    return dataclasses.replace(report, artifact=dataclasses.replace(artifact, path=path), tests=tests)


def require_package_name(subdir: str, name: str) -> str:
    """Return the place of a package or wheel in a channel; raises BrokenPackage where it cannot be one."""
    if (is_channel_subdir(subdir) and _NAME.fullmatch(name)) or WHEEL.fullmatch(f"{subdir}/{name}"):
        return f"{subdir}/{name}"
    raise BrokenPackage(f"{subdir}/{name} is not the name of a package")


def require_packages_of_config(
    feedstock: Feedstock, config: str, group: str, packages: Sequence[PackageReport]
) -> None:
    """Refuse a delivery that is not exactly the packages that a config renders; see `require_rendered_packages`."""
    rendered = limits.run_bounded(lambda: render.render(feedstock, config_file.read_config(feedstock, config)))
    outputs = [output for output in pins.close_static_pins(rendered).outputs if not output.skip]
    require_rendered_packages(config, group, outputs, packages)


def require_rendered_packages(
    config: str, group: str, outputs: Iterable[Output], packages: Sequence[PackageReport]
) -> None:
    """Refuse a delivery that is not exactly the packages of rendered outputs, and wheels of the config's group."""
    expected = {output.channel_path: output for output in outputs}
    delivered = [report.artifact.channel_path for report in packages]
    foreign = [
        place
        for place in delivered
        if place not in expected and not (WHEEL.fullmatch(place) and place.startswith(f"wheels/{group}/"))
    ]
    twice = [place for place in delivered if delivered.count(place) > 1]
    missing = sorted(expected.keys() - set(delivered))
    for places, what in ((foreign, "which it does not render"), (twice, "twice"), (missing, "")):
        if places:
            verb = "was delivered with" if what else "was delivered without"
            raise BrokenPackage(f"{config} {verb} {places[0]}{', ' if what[:1] == 'w' else ' '}{what}".rstrip())
    for place, report in zip(delivered, packages, strict=True):
        if place in expected:
            _require_metadata_of_output(report, expected[place])


def _require_metadata_of_output(report: PackageReport, output: Output) -> None:
    """Compare what the report and the package itself say with the rendered output."""
    artifact = report.artifact
    rendered = {"name": output.name, "version": output.version, "build": output.build_string, "subdir": output.subdir}
    said = {**rendered, "name": artifact.name, "version": artifact.version, "build": artifact.build_string}
    index = package_reader.read_info_json_object(artifact.path, "index.json")
    for values in (said, index):
        if wrong := [key for key, value in rendered.items() if values.get(key) != value]:
            key = wrong[0]
            raise BrokenPackage(
                f"{artifact.path.name} was delivered with the {key} {str(values.get(key))[:80]!r}",
                why=f"the config renders {rendered[key]!r}",
            )
