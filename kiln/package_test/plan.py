"""Plan the tests of a package from its rendered output: the specs to install and the script to run."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

from kiln.matchspec import package_name, strict
from kiln.model.plan import TestStep

if TYPE_CHECKING:
    from collections.abc import Collection
    from pathlib import Path

    from kiln.model.rendered import Output

SCRIPT_HEAD = (
    "set -e",
    'export PATH="$PREFIX/bin:$PATH"',
    'for hook in "$PREFIX"/etc/conda/activate.d/*.sh; do if [ -e "$hook" ]; then . "$hook"; fi; done',
    "set -x",
)


def plan(
    output: Output,
    *,
    recipe_folder: Path,
    folder: Path,
    prefix: Path,
    available: Collection[str] | None = None,
    sources: Path | None = None,
) -> TestStep:
    """Plan the test of one package; ``sources`` is the folder with the source files that it uses.

    ``available`` are the names of the packages in the channel, where that is known: other requirements of the test
    are omitted, with a note (a rehearsal has no compiler packages, for example; its tests use the machine's).
    """
    requirements = output.tests.requires
    required = [spec for spec in requirements if available is None or package_name(spec) in available]
    unavailable = [spec for spec in requirements if spec not in required]
    lines = test_lines(output)
    return TestStep(
        package=output.name,
        specs=(f"{output.name} =={output.version} {output.build_string}", *map(strict, required)),
        script=(*SCRIPT_HEAD, *lines),
        commands=len(lines),
        environment=_environment(output, prefix),
        files=(*(recipe_folder / name for name in output.tests.files), *_source_files(output, sources)),
        folder=folder,
        prefix=prefix,
        notes=(f"tested without {', '.join(unavailable)}, which this channel lacks",) if unavailable else (),
    )


def _source_files(output: Output, sources: Path | None) -> tuple[Path, ...]:
    return tuple(sorted(sources.iterdir())) if sources is not None and output.tests.source_files else ()


def test_lines(output: Output) -> tuple[str, ...]:
    """Return the shell lines of an output's tests: its imports, then its commands."""
    imports = (f"python -c {shlex.quote(f'import {module}')}" for module in output.tests.imports)
    return (*imports, *output.tests.commands)


def _environment(output: Output, prefix: Path) -> dict[str, str]:
    """Return the variables that conda-build's test environment has and a recipe's tests may rely on."""
    return {
        "PREFIX": str(prefix),
        "CONDA_PREFIX": str(prefix),
        "CONDA_DEFAULT_ENV": str(prefix),
        "PKG_NAME": output.name,
        "PKG_VERSION": output.version,
        "PKG_BUILDNUM": str(output.build_number),
        "SHLIB_EXT": ".so",
        "PYTHONNOUSERSITE": "1",
    }
