"""What an installed package brings to its test's prefix: the files for its tests, and the scripts that link it."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kiln.conda.specs import package_name

if TYPE_CHECKING:
    from collections.abc import Iterable


def packed_file_folders(prefix: Path, package: str) -> tuple[Path, ...]:
    """Return the folders with the files for its tests that an installed package carries; none for no package.

    conda-build has them in the metadata of the package, as kiln has for a meta.yaml; rattler-build installs them.
    """
    records = [record for record in _installed_records(prefix) if record["name"] == package] if package else []
    in_metadata = (Path(record["extracted_package_dir"]) / "info" / "test" for record in records)
    installed = sorted((prefix / "etc" / "conda" / "test-files" / package).glob("*")) if package else []
    return tuple(folder for folder in (*installed, *in_metadata) if folder.is_dir())


def link_script_lines(prefix: Path) -> tuple[str, ...]:
    """Return the shell lines that run the post-link scripts of the packages in a prefix, in conda's order.

    As in an installation, a requirement's script is run before those of the packages that require it, and one that
    fails is an error. They are run with the test's script, where the network is what the recipe was granted.
    """
    if not any((prefix / "bin").glob(".*-post-link.sh")):
        return ()
    return tuple(line for record in _requirements_first(_installed_records(prefix)) for line in _lines(prefix, record))


def _lines(prefix: Path, record: dict[str, Any]) -> tuple[str, ...]:
    script = prefix / "bin" / f".{record['name']}-post-link.sh"
    if not script.is_file():
        return ()
    values = {"NAME": record["name"], "VERSION": record["version"], "BUILDNUM": record["build_number"]}
    variables = " ".join(f"PKG_{key}={shlex.quote(str(value))}" for key, value in values.items())
    failed = shlex.quote(f"the post-link script of {record['name']} failed with exit code")
    return (f'(cd "$PREFIX" && {variables} bash {shlex.quote(str(script))}) || {{ echo {failed} $?; exit 1; }}',)


def _installed_records(prefix: Path) -> list[dict[str, Any]]:
    return [json.loads(file.read_text(encoding="utf-8")) for file in sorted((prefix / "conda-meta").glob("*.json"))]


def _requirements_first(records: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    by_name = {record["name"]: record for record in records}
    seen: set[str] = set()
    order: list[dict[str, Any]] = []

    def visit(name: str) -> None:  # packages may require each other, as python and pip have
        if name in by_name and name not in seen:
            seen.add(name)
            for spec in by_name[name]["depends"]:
                visit(package_name(spec))
            order.append(by_name[name])

    for name in by_name:
        visit(name)
    return order
